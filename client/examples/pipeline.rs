//! Many buckets in one round trip, and several that must all agree.
//! `cargo run -p redis-token-bucket-client --example pipeline [redis://HOST:PORT]`

use std::error::Error;

use redis_token_bucket_client::redis::{self, RedisResult};
use redis_token_bucket_client::{
    AsyncTokenBucketCommands, Decision, Key, Quota, Take, TokenBucketPipeline, recommended,
};

const MAILS: Quota = Quota::per_hour(100).burst(10);
const OF_THE_ORGANISATION: Quota = Quota::per_hour(1000);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1".to_owned());
    let client = redis::Client::open(recommended::connection_info(server)?)?;
    let mut connection = client.get_multiplexed_async_connection().await?;

    // Each for itself. One call's error is not to hide the others' answers, so each has a `Result` of its own.
    let mut pipeline = redis::pipe();
    pipeline.ignore_errors();
    let recipients = ["ada", "grace", "ada"];
    for recipient in recipients {
        pipeline.tb_take(Key::new(recipient, "mails"), MAILS, 1);
    }
    let answers: Vec<RedisResult<Decision>> = pipeline.query_async(&mut connection).await?;
    for (recipient, answer) in recipients.iter().zip(answers) {
        let decision = answer?;
        println!("a mail to {recipient}: {}", if decision.allowed { "sent" } else { "held back" });
    }

    // All or none: a user's bucket and the organisation's. Both have the tenant as their hash tag, so this works in a
    // cluster.
    let (user, all) = (Key::new("acme", "mails:ada"), Key::new("acme", "mails"));
    let both = connection.tb_mtake(&[Take::new(&user, MAILS, 5), Take::new(&all, OF_THE_ORGANISATION, 5)]).await?;
    println!("five mails from ada of acme: {}", if both.verdict.allowed { "sent" } else { "held back" });
    Ok(())
}
