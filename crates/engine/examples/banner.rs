//! Runs a TCP proxy that greets each client itself, lets a number of the server's bytes pass, spliced, and says goodbye:
//! `cargo run -p longsplice-engine --example banner -- 127.0.0.1:8080 127.0.0.1:8000 1000000`. Without privileges it
//! relays.
use std::{env, error::Error, io, net::SocketAddr, time::Duration};

use longsplice_engine::{Ended, OpenError, Pair, Side, Splicer, Until, policy::SplicePolicy};
use tokio::{io::AsyncWriteExt, net::TcpListener, net::TcpStream, signal::ctrl_c};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().collect();
    let [_, listen, target, count] = &args[..] else {
        return Err("usage: banner LISTEN TARGET BYTES".into());
    };
    let (target, count) = (target.parse()?, count.parse()?);
    let config = longsplice_engine::SplicerConfig {
        instance: "banner".into(),
        ..Default::default()
    };
    let splicer = match Splicer::open(config.clone()).await {
        Err(why @ (OpenError::Privileges(_) | OpenError::Unsupported(_))) => {
            eprintln!("relaying only: {why}");
            Splicer::relay_only(config, why)
        }
        opened => opened?,
    };
    let listener = TcpListener::bind(listen).await?;
    splicer.prepare_listener(&listener, target)?;
    loop {
        let (client, peer) = tokio::select!(accepted = listener.accept() => accepted?, _ = ctrl_c() => break);
        let splicer = splicer.clone();
        tokio::spawn(async move { println!("{peer}: {:?}", serve(&splicer, client, target, count).await) });
    }
    let how = longsplice_engine::Shutdown::EndSpliced;
    splicer.shutdown(how, Duration::from_secs(1)).await;
    Ok(())
}

async fn serve(splicer: &Splicer, mut client: TcpStream, to: SocketAddr, bytes: u64) -> io::Result<String> {
    splicer.prepare_client(&client)?;
    let server = splicer.connect(to, &client, Duration::from_secs(5)).await?;
    client
        .write_all(b"Welcome. This line is the proxy's.\r\n")
        .await?;
    let pair = Pair::new(client, server).with_splice(SplicePolicy::Now);
    match splicer
        .splice(pair, Until::bytes_from(Side::Server, bytes))
        .await?
    {
        Ended::Closed(s) => Ok(format!("{} bytes, and the end", s.bytes_to_client)),
        Ended::Detached(id) => Ok(format!("flow {id} outlives us")),
        Ended::Returned(mut pair) => {
            pair.client.write_all(b"\r\nThat is enough. Goodbye.\r\n").await?;
            pair.set_reset_on_close(false)?;
            Ok(format!("{:?} bytes, spliced: {}", pair.passed, pair.spliced))
        }
    }
}
