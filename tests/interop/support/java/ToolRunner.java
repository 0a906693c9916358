import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main classes of Apache Kafka's tools one after the other, as if each were alone in its JVM: with arguments,
 * input and output of its own, until it returns or exits; then its shutdown hooks run, on which some rely.
 *
 * A line of input is a command: the class, the text on its stdin, its arguments; a line of output is its end: the exit
 * code, stdout, stderr. Fields have tabs between them; texts are in base64 after a '='.
 */
public final class ToolRunner {
    /** What a tool's exit has become. An Error, which tools do not catch to print it. */
    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    /** Stands for stdout or stderr as long as the JVM lives, because Scala and loggers keep the stream they find. */
    private static final class Turned extends FilterOutputStream {
        Turned() {
            super(new ByteArrayOutputStream());
        }

        @Override
        public synchronized void write(byte[] bytes, int start, int length) throws IOException {
            out.write(bytes, start, length);
        }

        synchronized void turn(OutputStream to) {
            out = to;
        }
    }

    private static final List<Runnable> hooks = new ArrayList<>();
    private static Integer exitCode;

    private static synchronized void exit(int code, String message) {
        if (exitCode == null) {
            exitCode = code;
            if (message != null) {
                System.err.println(message);
            }
        }
        throw new Exited();
    }

    private static int run(String name, String[] arguments) {
        hooks.clear();
        exitCode = null;
        int returned = 0;
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException failed) {
            if (!(failed.getCause() instanceof Exited)) {
                failed.getCause().printStackTrace();
                returned = 1;
            }
        } catch (ReflectiveOperationException failed) {
            failed.printStackTrace();
            returned = 1;
        }
        hooks.forEach(Runnable::run);
        return exitCode == null ? returned : exitCode;
    }

    private static String decoded(String field) {
        return new String(Base64.getDecoder().decode(field.substring(1)), StandardCharsets.UTF_8);
    }

    private static String encoded(ByteArrayOutputStream bytes) {
        return "=" + Base64.getEncoder().encodeToString(bytes.toByteArray());
    }

    public static void main(String[] ignored) throws IOException {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream answers = System.out;
        Turned out = new Turned();
        Turned err = new Turned();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(ToolRunner::exit);
        Exit.setHaltProcedure(ToolRunner::exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] fields = line.split("\t");
            String[] arguments = new String[fields.length - 2];
            for (int number = 0; number < arguments.length; number++) {
                arguments[number] = decoded(fields[number + 2]);
            }
            ByteArrayOutputStream itsOut = new ByteArrayOutputStream();
            ByteArrayOutputStream itsErr = new ByteArrayOutputStream();
            out.turn(itsOut);
            err.turn(itsErr);
            System.setIn(new ByteArrayInputStream(decoded(fields[1]).getBytes(StandardCharsets.UTF_8)));
            int code = run(fields[0], arguments);
            answers.println(code + "\t" + encoded(itsOut) + "\t" + encoded(itsErr));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
