import java.io.FileReader;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;

/**
 * Opens clients one after the other, each of which authenticates, asks for the cluster and closes. Arguments: a
 * properties file, how many warm up, how many count. Prints the seconds and the CPU seconds of those that count.
 */
public final class Authentications {
    private Authentications() {}

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            settings.load(file);
        }
        run(settings, Integer.parseInt(arguments[1]));
        long cpu = cpuNanos();
        long began = System.nanoTime();
        run(settings, Integer.parseInt(arguments[2]));
        System.out.println((System.nanoTime() - began) / 1e9 + " " + (cpuNanos() - cpu) / 1e9);
    }

    private static void run(Properties settings, int count) throws Exception {
        for (int number = 0; number < count; number++) {
            try (Admin admin = Admin.create(settings)) {
                admin.describeCluster().controller().get();
            }
        }
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
                        java.lang.management.ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }
}
