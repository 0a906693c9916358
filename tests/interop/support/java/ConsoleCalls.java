import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The calls of Kafka's AdminClient that consoles make, in an order in which a console's user could make them.
 *
 * <p>Arguments: topic, then files of client properties, one for each cluster. Prints a line for each call and cluster:
 * the file, the call's name, and what came of it, separated by tabs. What differs between clusters by its nature (ids,
 * addresses, sizes, default settings) is left out of the outcome.
 */
public class ConsoleCalls {
    private static String cluster;

    private static void call(String name, Callable<Object> asked) {
        String outcome;
        try {
            outcome = String.valueOf(asked.call());
        } catch (ExecutionException error) {
            outcome = "error " + error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            outcome = "error " + error.getClass().getSimpleName();
        }
        System.out.println(cluster + "\t" + name + "\t" + outcome);
    }

    private static Set<String> operations(Collection<AclOperation> found) {
        Set<String> names = new TreeSet<>();
        if (found != null) found.forEach(each -> names.add(each.name()));
        return names;
    }

    private static Object done(KafkaFuture<?> future) throws Exception {
        future.get();
        return "done";
    }

    public static void main(String[] arguments) throws Exception {
        for (String file : Arrays.copyOfRange(arguments, 1, arguments.length)) {
            cluster = file;
            Properties properties = new Properties();
            try (Reader reader = Files.newBufferedReader(Path.of(file))) {
                properties.load(reader);
            }
            try (Admin admin = Admin.create(properties)) {
                calls(admin, arguments[0], properties);
            }
        }
    }

    private static void calls(Admin admin, String topic, Properties properties) throws Exception {
        String group = topic + "-group";
        TopicPartition first = new TopicPartition(topic, 0);
        ConfigResource ofTopic = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Node node = admin.describeCluster().nodes().get().iterator().next();
        ConfigResource ofBroker = new ConfigResource(ConfigResource.Type.BROKER, node.idString());

        call("describeCluster", () -> {
            DescribeClusterResult found =
                admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            return found.nodes().get().size() + " brokers, controller " + (found.controller().get() != null)
                + ", may " + operations(found.authorizedOperations().get());
        });
        call("describeFeatures", () -> admin.describeFeatures().featureMetadata().get() != null);
        call("createTopics", () -> done(admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all()));
        call("createTopics, again", () -> done(admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all()));
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int number = 0; number < 10; number++)
                producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + number, null, new byte[] {1})).get();
        }
        call("listTopics", () ->
            admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get().contains(topic));
        call("describeTopics", () -> {
            TopicDescription found = admin.describeTopics(
                List.of(topic), new DescribeTopicsOptions().includeAuthorizedOperations(true))
                .allTopicNames().get().get(topic);
            return found.partitions().size() + " partitions, internal " + found.isInternal() + ", may "
                + operations(found.authorizedOperations());
        });
        call("describeTopics, missing", () -> admin.describeTopics(List.of(topic + "-none")).allTopicNames().get());
        call("describeConfigs, broker", () -> {
            Config found = admin.describeConfigs(List.of(ofBroker)).all().get().get(ofBroker);
            // Where kafbat finds neither, it hides quotas.
            boolean hasVersion = found.get("inter.broker.protocol.version") != null
                || admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("metadata.version");
            return "log.dirs " + (found.get("log.dirs") != null) + ", of " + (found.entries().size() > 50)
                + ", version " + hasVersion;
        });
        call("describeConfigs, topic", () -> {
            Config found = admin.describeConfigs(
                List.of(ofTopic), new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true))
                .all().get().get(ofTopic);
            ConfigEntry entry = found.get("retention.ms");
            return entry.value() + " " + entry.type() + " " + entry.source() + " documented "
                + (entry.documentation() != null) + " synonyms " + !entry.synonyms().isEmpty();
        });
        call("describeLogDirs", () -> {
            Map<String, LogDirDescription> found =
                admin.describeLogDirs(List.of(node.id())).allDescriptions().get().get(node.id());
            return found.values().stream().anyMatch(each -> each.error() == null
                && each.replicaInfos().containsKey(first) && each.replicaInfos().get(first).size() > 0);
        });
        call("listOffsets", () -> {
            Map<String, Object> found = new LinkedHashMap<>();
            for (Map.Entry<String, OffsetSpec> each : List.of(
                    Map.entry("earliest", OffsetSpec.earliest()), Map.entry("latest", OffsetSpec.latest()),
                    Map.entry("time", OffsetSpec.forTimestamp(1_700_000_000_005L)),
                    Map.entry("largest time", OffsetSpec.maxTimestamp())))
                found.put(each.getKey(), admin.listOffsets(Map.of(first, each.getValue())).all().get().get(first).offset());
            return found;
        });
        call("describeProducers", () ->
            admin.describeProducers(List.of(first)).all().get().get(first).activeProducers().size());
        call("alterConsumerGroupOffsets", () ->
            done(admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(4))).all()));
        call("listConsumerGroups", () -> admin.listConsumerGroups().all().get().stream()
            .filter(each -> each.groupId().equals(group)).map(each -> String.valueOf(each.state())).toList());
        call("describeConsumerGroups", () -> {
            ConsumerGroupDescription found = admin.describeConsumerGroups(
                List.of(group), new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true))
                .all().get().get(group);
            return found.state() + " " + found.members().size() + " members, may "
                + operations(found.authorizedOperations());
        });
        call("describeConsumerGroups, missing", () ->
            admin.describeConsumerGroups(List.of(group + "-none")).all().get().values().iterator().next().state());
        call("listConsumerGroupOffsets", () -> admin.listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata().get().get(first).offset());
        call("deleteConsumerGroupOffsets", () -> done(admin.deleteConsumerGroupOffsets(group, Set.of(first)).all()));
        call("deleteConsumerGroups", () -> done(admin.deleteConsumerGroups(List.of(group)).all()));
        call("deleteConsumerGroups, missing", () -> done(admin.deleteConsumerGroups(List.of(group + "-none")).all()));
        call("createPartitions", () ->
            done(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all()));
        call("createPartitions, fewer", () ->
            done(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(1))).all()));
        call("incrementalAlterConfigs, topic", () -> done(admin.incrementalAlterConfigs(Map.of(ofTopic, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "7000000"), AlterConfigOp.OpType.SET)))).all()));
        call("incrementalAlterConfigs, bad value", () -> done(admin.incrementalAlterConfigs(Map.of(ofTopic, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "soon"), AlterConfigOp.OpType.SET)))).all()));
        call("incrementalAlterConfigs, broker", () -> done(admin.incrementalAlterConfigs(Map.of(ofBroker, List.of(
            new AlterConfigOp(new ConfigEntry("log.cleaner.threads", "1"), AlterConfigOp.OpType.SET)))).all()));
        call("deleteRecords", () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(3)))
            .lowWatermarks().get(first).get().lowWatermark());
        call("listPartitionReassignments", () -> admin.listPartitionReassignments().reassignments().get());
        call("alterPartitionReassignments, none to cancel", () ->
            done(admin.alterPartitionReassignments(Map.of(first, Optional.empty())).all()));
        call("electLeaders, not needed", () ->
            done(admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).all()));
        call("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
        AclBinding binding = new AclBinding(
            new ResourcePattern(ResourceType.TOPIC, topic, PatternType.LITERAL),
            new AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW));
        call("createAcls", () -> done(admin.createAcls(List.of(binding)).all()));
        call("deleteAcls", () -> done(admin.deleteAcls(List.of(binding.toFilter())).all()));
        ClientQuotaEntity user = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, topic));
        call("alterClientQuotas", () -> done(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(
            user, List.of(new ClientQuotaAlteration.Op("consumer_byte_rate", 1e6))))).all()));
        call("describeClientQuotas", () -> {
            for (int tries = 0; tries < 100; tries++) {
                Map<ClientQuotaEntity, Map<String, Double>> found =
                    admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get();
                if (found.containsKey(user)) return found.get(user);
                Thread.sleep(50);
            }
            return "none";
        });
        call("alterClientQuotas, removed", () -> done(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(
            user, List.of(new ClientQuotaAlteration.Op("consumer_byte_rate", null))))).all()));
        call("describeUserScramCredentials", () -> admin.describeUserScramCredentials().users().get());
        call("alterUserScramCredentials", () -> done(admin.alterUserScramCredentials(List.of(
            new UserScramCredentialUpsertion(topic, new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "secret")))
            .all()));
        call("alterUserScramCredentials, removed", () -> done(admin.alterUserScramCredentials(List.of(
            new UserScramCredentialDeletion(topic, ScramMechanism.SCRAM_SHA_256))).all()));
        call("alterReplicaLogDirs, no such directory", () -> done(admin.alterReplicaLogDirs(
            Map.of(new TopicPartitionReplica(topic, 0, node.id()), "/no/such/directory")).all()));
        call("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo().get() != null);
        call("deleteTopics", () -> done(admin.deleteTopics(List.of(topic)).all()));
        call("deleteTopics, missing", () -> done(admin.deleteTopics(List.of(topic + "-none")).all()));
    }
}
