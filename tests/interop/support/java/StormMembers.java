import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of a group that are Apache Kafka's consumer: what storms/member.py is, with several in one JVM, because
 * starting one takes long. They are killed, stopped and paused together.
 *
 *   StormMembers BOOTSTRAP GROUP TOPIC ASSIGNOR SESSION_MS SEED INSTANCE JOURNAL NAME [JOURNAL NAME ...]
 *
 * INSTANCE is "-" for dynamic members; static ones are called INSTANCE-0, INSTANCE-1, ... The journals hold the events
 * that storms/history.py describes.
 */
public final class StormMembers implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Map<String, String> ASSIGNORS =
            Map.of(
                    "range", "org.apache.kafka.clients.consumer.RangeAssignor",
                    "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
                    "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    private static volatile boolean stopping = false;

    private final String name;
    private final String topic;
    private final boolean incremental;
    private final OutputStream journal;
    private final Random random;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Set<Integer> owned = new TreeSet<>();
    private final Map<Integer, Long> toCommit = new HashMap<>();
    private int commits = 0;
    private int stintGeneration = -1;

    private StormMembers(String[] arguments, String journal, String name, int number) throws IOException {
        this.name = name;
        this.topic = arguments[2];
        this.incremental = arguments[3].equals("cooperative-sticky");
        this.journal = new FileOutputStream(journal, true);
        this.random = new Random(Long.parseLong(arguments[5]) + number);
        String instance = arguments[6].equals("-") ? null : arguments[6] + "-" + number;
        int session = Integer.parseInt(arguments[4]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("client.id", name);
        settings.put("partition.assignment.strategy", ASSIGNORS.get(arguments[3]));
        settings.put("session.timeout.ms", session);
        settings.put("max.poll.interval.ms", 60_000);
        settings.put("heartbeat.interval.ms", session / 8);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("fetch.max.wait.ms", 100);
        settings.put("max.poll.records", 200);
        settings.put("reconnect.backoff.max.ms", 200);
        settings.put("default.api.timeout.ms", 5000);
        settings.put("request.timeout.ms", 5000);
        settings.put("enable.metrics.push", "false");
        if (instance != null) {
            settings.put("group.instance.id", instance);
        }
        write("started", "\"instance\":" + (instance == null ? "null" : "\"" + instance + "\""));
        this.consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void write(String event, String fields) {
        String line =
                "{\"time\":" + System.nanoTime() + ",\"member\":\"" + name + "\",\"event\":\"" + event + "\""
                        + (fields.isEmpty() ? "" : "," + fields) + "}\n";
        try {
            journal.write(line.getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static String list(Collection<Integer> partitions) {
        return new TreeSet<>(partitions).stream().map(String::valueOf).collect(Collectors.joining(",", "[", "]"));
    }

    private static Set<Integer> numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::partition).collect(Collectors.toCollection(HashSet::new));
    }

    private int generation() {
        return consumer.groupMetadata().generationId();
    }

    /** A cooperative commit may be sent in a generation that groupMetadata() does not show before the next poll. */
    private int commitGeneration() {
        return incremental ? -1 : generation();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        if (!incremental) {
            owned.clear();
        }
        owned.addAll(numbers(partitions));
        stintGeneration = generation();
        write("assigned", "\"generation\":" + stintGeneration + ",\"partitions\":" + list(owned));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        Set<Integer> gone = numbers(partitions);
        Map<Integer, Long> last = new HashMap<>(toCommit);
        last.keySet().retainAll(gone);
        commit(last);
        drop(gone);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        drop(numbers(partitions));
    }

    private void drop(Set<Integer> gone) {
        toCommit.keySet().removeAll(gone);
        owned.removeAll(gone);
        write("revoked", "\"generation\":" + generation() + ",\"partitions\":" + list(gone));
    }

    private void commit(Map<Integer, Long> offsets) {
        if (offsets.isEmpty()) {
            return;
        }
        String number = "\"number\":" + ++commits;
        String text =
                offsets.entrySet().stream()
                        .map(each -> "\"" + each.getKey() + "\":" + each.getValue())
                        .collect(Collectors.joining(",", ",\"offsets\":{", "}"));
        write("committing", number + ",\"generation\":" + commitGeneration() + text);
        Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
        offsets.forEach(
                (partition, offset) -> wanted.put(new TopicPartition(topic, partition), new OffsetAndMetadata(offset)));
        try {
            consumer.commitSync(wanted);
        } catch (RuntimeException error) { // refused, timed out, disconnected: it is not acknowledged
            write("refused", number + ",\"error\":\"" + error.getClass().getSimpleName() + "\"");
            return;
        }
        write("committed", number + ",\"generation\":" + commitGeneration() + text);
        offsets.forEach((partition, offset) -> toCommit.remove(partition, offset));
    }

    private void deliver(Iterable<ConsumerRecord<byte[], byte[]>> records) {
        List<long[]> ranges = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            String expected = record.partition() + ":" + record.offset();
            if (record.value() == null || !new String(record.value(), StandardCharsets.UTF_8).equals(expected)) {
                write("wrong", "\"partition\":" + record.partition() + ",\"offset\":" + record.offset());
            }
            long[] last = ranges.isEmpty() ? null : ranges.get(ranges.size() - 1);
            if (last != null && last[0] == record.partition() && last[2] == record.offset()) {
                last[2]++;
            } else {
                ranges.add(new long[] {record.partition(), record.offset(), record.offset() + 1});
            }
        }
        for (long[] range : ranges) {
            write(
                    "delivered",
                    "\"generation\":" + stintGeneration + ",\"partition\":" + range[0] + ",\"first\":" + range[1]
                            + ",\"next\":" + range[2]);
            toCommit.put((int) range[0], range[2]);
        }
    }

    private void run() {
        consumer.subscribe(List.of(topic), this);
        while (!stopping) {
            deliver(consumer.poll(POLL));
            if (random.nextInt(10) < 4) {
                commit(new HashMap<>(toCommit));
            }
        }
        commit(new HashMap<>(toCommit));
        consumer.close();
        write("left", "");
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int at = 7; at < arguments.length; at += 2) {
            StormMembers member = new StormMembers(arguments, arguments[at], arguments[at + 1], (at - 7) / 2);
            threads.add(new Thread(member::run, arguments[at + 1]));
        }
        Runtime.getRuntime()
                .addShutdownHook(
                        new Thread(
                                () -> {
                                    stopping = true;
                                    for (Thread thread : threads) {
                                        try {
                                            thread.join(10_000);
                                        } catch (InterruptedException error) {
                                            return;
                                        }
                                    }
                                }));
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
