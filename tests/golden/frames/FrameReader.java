import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;

/**
 * Reads each batch of a file, one a line in base64, as Apache Kafka's Java consumer does, and writes a line for each:
 * the number of its records, a comma, and their values in base64 with commas between; or the name of the exception.
 */
public final class FrameReader {
    private static String read(byte[] batch) {
        StringBuilder values = new StringBuilder();
        int count = 0;
        try {
            for (MutableRecordBatch each : MemoryRecords.readableRecords(ByteBuffer.wrap(batch)).batches()) {
                each.ensureValid();
                try (CloseableIterator<Record> records = each.streamingIterator(BufferSupplier.create())) {
                    while (records.hasNext()) {
                        ByteBuffer value = records.next().value();
                        byte[] bytes = new byte[value.remaining()];
                        value.get(bytes);
                        values.append(',').append(Base64.getEncoder().encodeToString(bytes));
                        count++;
                    }
                }
            }
        } catch (Throwable error) {
            return "! " + error.getClass().getSimpleName();
        }
        return count + values.toString();
    }

    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            System.out.println(read(Base64.getDecoder().decode(line)));
        }
    }
}
