import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * One application with two topics and the same subscription name. Every message of both is sent to
 * retry once and then ends in a dead-letter topic, both with the client's own names for these.
 *
 * Arguments: service URL, first topic, second topic. Prints "retried TOPIC VALUE" for what each
 * consumer gets again, and "dead TOPIC VALUE" for what is in each topic's dead-letter topic.
 */
public final class RetryTopics {
    private static final String SUBSCRIPTION = "workers";
    private static final int MESSAGES = 5;

    public static void main(String[] arguments) throws Exception {
        List<String> topics = List.of(arguments[1], arguments[2]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            List<Consumer<String>> consumers = new ArrayList<>();
            for (String topic : topics) {
                consumers.add(subscribe(client, topic));
            }
            for (String topic : topics) {
                produce(client, topic);
            }
            for (int at = 0; at < topics.size(); at++) {
                work(topics.get(at), consumers.get(at));
            }
            for (String topic : topics) {
                readDead(client, topic);
            }
            for (Consumer<String> consumer : consumers) {
                consumer.close();
            }
        }
    }

    private static Consumer<String> subscribe(PulsarClient client, String topic) throws Exception {
        return client.newConsumer(Schema.STRING)
                .topic(topic)
                .subscriptionName(SUBSCRIPTION)
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).build())
                .subscribe();
    }

    private static void produce(PulsarClient client, String topic) throws Exception {
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            for (int number = 0; number < MESSAGES; number++) {
                producer.send(topic + "#" + number);
            }
        }
    }

    /** Sends each message to retry when it comes, and again when it comes from there. */
    private static void work(String topic, Consumer<String> consumer) throws Exception {
        for (int count = 0; count < 2 * MESSAGES; count++) {
            Message<String> message = consumer.receive(20, TimeUnit.SECONDS);
            if (message == null) {
                return;
            }
            if (message.getProperty("RECONSUMETIMES") != null) {
                System.out.println("retried " + topic + " " + message.getValue());
            }
            consumer.reconsumeLater(message, 1, TimeUnit.MILLISECONDS);
        }
    }

    private static void readDead(PulsarClient client, String topic) throws Exception {
        String dead = topic + "-" + SUBSCRIPTION + "-DLQ";
        try (Reader<byte[]> reader =
                client.newReader().topic(dead).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                String value = new String(reader.readNext().getValue(), StandardCharsets.UTF_8);
                System.out.println("dead " + topic + " " + value);
            }
        }
    }
}
