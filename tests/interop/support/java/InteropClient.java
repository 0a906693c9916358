import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka's own producer and consumer, driven by a file of commands, so that one JVM does many of them:
 *
 *   produce TOPIC CODEC ACKS IDEMPOTENT RECORDS_FILE
 *   oversize TOPIC VALUE_BYTES
 *   consume TOPIC COUNT
 *   crowd TOPIC COUNT OTHERS: COUNT records named first-N, one record of each of so many other producers, COUNT
 *     records named second-N of the first producer
 *
 * A record is a line of fields with tabs between: key, value, timestamp, then name and value of each header. Bytes are
 * in base64 with '=' in front, null is '-', so that nothing is empty. What is consumed has its offset and the type of
 * its timestamp in front. Each command's output ends with a line "done COMMAND".
 */
public final class InteropClient {
    private static final String TAB = "\t";

    private static String text(byte[] bytes) {
        return bytes == null ? "-" : "=" + Base64.getEncoder().encodeToString(bytes);
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text.substring(1));
    }

    private static Properties settings(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.metrics.push", "false");
        return settings;
    }

    private static void produce(String bootstrap, String[] command, PrintStream out) throws Exception {
        Properties settings = settings(bootstrap);
        settings.put("compression.type", command[2]);
        settings.put("acks", command[3]);
        settings.put("enable.idempotence", command[4]);
        settings.put("linger.ms", "20");
        settings.put("batch.size", "20000");
        List<Future<RecordMetadata>> results = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String line : Files.readAllLines(Path.of(command[5]))) {
                String[] fields = line.split(TAB, -1);
                ProducerRecord<byte[], byte[]> record =
                        new ProducerRecord<>(command[1], 0, Long.parseLong(fields[2]), bytes(fields[0]), bytes(fields[1]));
                for (int at = 3; at < fields.length; at += 2) {
                    record.headers().add(new String(bytes(fields[at]), StandardCharsets.UTF_8), bytes(fields[at + 1]));
                }
                results.add(producer.send(record));
            }
        }
        for (Future<RecordMetadata> result : results) {
            out.println(result.get().offset());
        }
    }

    private static void oversize(String bootstrap, String[] command, PrintStream out) throws Exception {
        Properties settings = settings(bootstrap);
        settings.put("max.request.size", "10000000");
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            byte[] value = new byte[Integer.parseInt(command[2])];
            try {
                out.println("offset " + producer.send(new ProducerRecord<>(command[1], 0, null, value)).get().offset());
            } catch (java.util.concurrent.ExecutionException error) {
                out.println(error.getCause().getClass().getSimpleName());
            }
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(String bootstrap) {
        Properties settings = settings(bootstrap);
        settings.put("linger.ms", "0");
        settings.put("batch.size", "100");
        settings.put("delivery.timeout.ms", "30000");
        settings.put("request.timeout.ms", "20000");
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static void send(
            KafkaProducer<byte[], byte[]> producer, String topic, String name, int count, PrintStream out)
            throws Exception {
        List<Future<RecordMetadata>> results = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            byte[] value = (name + "-" + number).getBytes(StandardCharsets.UTF_8);
            results.add(producer.send(new ProducerRecord<>(topic, 0, null, value)));
        }
        for (Future<RecordMetadata> result : results) {
            out.println(result.get().offset());
        }
    }

    private static void crowd(String bootstrap, String[] command, PrintStream out) throws Exception {
        int count = Integer.parseInt(command[2]);
        try (KafkaProducer<byte[], byte[]> idle = producer(bootstrap)) {
            send(idle, command[1], "first", count, out);
            for (int number = 0; number < Integer.parseInt(command[3]); number++) {
                try (KafkaProducer<byte[], byte[]> other = producer(bootstrap)) {
                    send(other, command[1], "other", 1, out);
                }
            }
            send(idle, command[1], "second", count, out);
        }
    }

    private static void consume(String bootstrap, String[] command, PrintStream out) {
        Properties settings = settings(bootstrap);
        settings.put("auto.offset.reset", "none");
        int wanted = Integer.parseInt(command[2]);
        TopicPartition partition = new TopicPartition(command[1], 0);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long until = System.nanoTime() + 30_000_000_000L;
            int found = 0;
            while (found < wanted && System.nanoTime() < until) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    found++;
                    StringBuilder line = new StringBuilder();
                    line.append(record.offset()).append(TAB).append(record.timestampType().name).append(TAB);
                    line.append(text(record.key())).append(TAB).append(text(record.value()));
                    line.append(TAB).append(record.timestamp());
                    for (Header header : record.headers()) {
                        line.append(TAB).append(text(header.key().getBytes(StandardCharsets.UTF_8)));
                        line.append(TAB).append(text(header.value()));
                    }
                    out.println(line);
                }
            }
        }
    }

    /** Reads from the beginning until the position is at the end, and prints the position. */
    private static void drain(String bootstrap, String[] command, PrintStream out) {
        Properties settings = settings(bootstrap);
        settings.put("auto.offset.reset", "none");
        TopicPartition partition = new TopicPartition(command[1], 0);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            long until = System.nanoTime() + 15_000_000_000L;
            while (consumer.position(partition) < end && System.nanoTime() < until) {
                consumer.poll(Duration.ofMillis(200));
            }
            out.println(consumer.position(partition));
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line : Files.readAllLines(Path.of(arguments[1]))) {
            String[] command = line.split(" ");
            switch (command[0]) {
                case "produce" -> produce(arguments[0], command, out);
                case "crowd" -> crowd(arguments[0], command, out);
                case "oversize" -> oversize(arguments[0], command, out);
                case "consume" -> consume(arguments[0], command, out);
                case "drain" -> drain(arguments[0], command, out);
                default -> throw new IllegalArgumentException(line);
            }
            out.println("done " + line);
        }
        out.flush();
    }
}
