import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka's idempotent producer: ChaosProducer BOOTSTRAP TOPIC PARTITIONS NAME RATE sends so many records a second,
 * to one partition after the other, until its input ends. A value's bytes are those of tests/chaos/values.py. For each
 * record that was answered it prints: number, partition, begun, ended (both nanoTime), offset, error or '-'.
 */
public final class ChaosProducer {
    private static byte[] payload(String name) {
        byte[] unit = (name + " ").getBytes(StandardCharsets.US_ASCII);
        int sum = 0;
        for (byte each : unit) {
            sum += each;
        }
        byte[] bytes = new byte[unit.length + sum * 7 % 600];
        for (int at = 0; at < bytes.length; at++) {
            bytes[at] = unit[at % unit.length];
        }
        return bytes;
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        String name = arguments[3];
        long pauseNanos = (long) (1e9 / Double.parseDouble(arguments[4]));
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        settings.put("linger.ms", "5");
        settings.put("request.timeout.ms", "3000");
        settings.put("delivery.timeout.ms", "60000");
        settings.put("max.block.ms", "60000");
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("retry.backoff.max.ms", "200");
        settings.put("enable.metrics.push", "false");
        PrintStream out = System.out;
        Thread main = Thread.currentThread();
        boolean[] stopping = {false};
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException error) {
                // As good as its end.
            }
            stopping[0] = true;
            main.interrupt();
        });
        input.setDaemon(true);
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.partitionsFor(topic);
        input.start();
        long due = System.nanoTime();
        for (int next = 0; !stopping[0]; next++) {
            int number = next;
            int partition = number % partitions;
            long begun = System.nanoTime();
            try {
                producer.send(new ProducerRecord<>(topic, partition, null, payload(name + "-" + number)), (told, error) -> {
                    String problem = error == null ? "-" : error.getClass().getSimpleName();
                    long offset = told != null && error == null ? told.offset() : -1;
                    String line = number + " " + partition + " " + begun + " " + System.nanoTime() + " " + offset;
                    synchronized (out) {
                        out.println(line + " " + problem);
                    }
                });
                due += pauseNanos;
                long left = due - System.nanoTime();
                if (left > 0) {
                    TimeUnit.NANOSECONDS.sleep(left);
                } else {
                    due -= left;
                }
            } catch (InterruptedException | org.apache.kafka.common.errors.InterruptException stopped) {
                break;
            }
        }
        Thread.interrupted();
        producer.close();
    }
}
