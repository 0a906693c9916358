// Apache Kafka's own assignors and consumer protocol, for comparison: cases on stdin, results on stdout.
//
//   case ASSIGNOR | topic NAME COUNT | member ID INSTANCE GENERATION TOPICS OWNED USERDATA RACK | end
//
// Absent values are "-"; TOPICS are separated by commas, OWNED is TOPIC:PARTITION separated by commas, USERDATA is hex.
// A case prints, for each member, "ID<TAB>assigned<TAB>subscription<TAB>assignment", the last two as hex of the bytes that
// Java's consumer puts on the wire, and then "end".

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public class GroupAssignors {
    private static final Node BROKER = new Node(1, "localhost", 9092);

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder output = new StringBuilder();
        String assignor = null;
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Subscription> members = new TreeMap<>();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "case":
                    assignor = words[1];
                    partitions.clear();
                    members.clear();
                    break;
                case "topic":
                    for (int number = 0; number < Integer.parseInt(words[2]); number++) {
                        Node[] replicas = {BROKER};
                        partitions.add(new PartitionInfo(words[1], number, BROKER, replicas, replicas));
                    }
                    break;
                case "member":
                    members.put(words[1], subscription(words));
                    break;
                default:
                    run(assignor, partitions, members, output);
            }
        }
        System.out.write(output.toString().getBytes(StandardCharsets.UTF_8));
        System.out.flush();
    }

    private static void run(
            String name, List<PartitionInfo> partitions, Map<String, Subscription> members, StringBuilder output) {
        Cluster cluster =
                new Cluster("id", Collections.singletonList(BROKER), partitions, new HashSet<>(), new HashSet<>());
        Map<String, Assignment> assigned =
                assignor(name).assign(cluster, new GroupSubscription(members)).groupAssignment();
        members.forEach((id, subscription) -> {
            Assignment assignment = assigned.get(id);
            List<String> names = new ArrayList<>();
            assignment.partitions().forEach(each -> names.add(each.topic() + ":" + each.partition()));
            output.append(id).append('\t').append(names.isEmpty() ? "-" : String.join(",", names));
            output.append('\t').append(hex(ConsumerProtocol.serializeSubscription(subscription)));
            output.append('\t').append(hex(ConsumerProtocol.serializeAssignment(assignment))).append('\n');
        });
        output.append("end\n");
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            default: return new CooperativeStickyAssignor();
        }
    }

    private static Subscription subscription(String[] words) {
        List<TopicPartition> owned = new ArrayList<>();
        for (String each : list(words[5])) {
            int colon = each.lastIndexOf(':');
            owned.add(new TopicPartition(each.substring(0, colon), Integer.parseInt(each.substring(colon + 1))));
        }
        ByteBuffer userData = words[6].equals("-") ? null : ByteBuffer.wrap(bytes(words[6]));
        Optional<String> rack = words[7].equals("-") ? Optional.empty() : Optional.of(words[7]);
        Subscription made =
                new Subscription(list(words[4]), userData, owned, Integer.parseInt(words[3]), rack);
        if (!words[2].equals("-")) {
            made.setGroupInstanceId(Optional.of(words[2]));
        }
        return made;
    }

    private static List<String> list(String text) {
        return text.equals("-") ? Collections.emptyList() : Arrays.asList(text.split(","));
    }

    private static byte[] bytes(String hex) {
        byte[] data = new byte[hex.length() / 2];
        for (int index = 0; index < data.length; index++) {
            data[index] = (byte) Integer.parseInt(hex.substring(2 * index, 2 * index + 2), 16);
        }
        return data;
    }

    private static String hex(ByteBuffer buffer) {
        StringBuilder text = new StringBuilder();
        for (ByteBuffer left = buffer.duplicate(); left.hasRemaining(); ) {
            text.append(String.format("%02x", left.get()));
        }
        return text.toString();
    }
}
