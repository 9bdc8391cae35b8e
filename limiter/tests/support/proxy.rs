//! A proxy that can lose a reply: the server has carried the call out, and the caller sees its connection break off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone)]
pub(crate) struct Proxy {
    port: u16,
    server: Arc<AtomicU16>,
    is_armed: Arc<AtomicBool>,
}

impl Proxy {
    /// Takes a port; nothing is passed on before [`Proxy::serve`].
    pub(crate) async fn bind() -> (Proxy, TcpListener) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        (
            Proxy { port: listener.local_addr().unwrap().port(), server: Arc::default(), is_armed: Arc::default() },
            listener,
        )
    }

    pub(crate) fn serve(&self, listener: TcpListener, server: u16) {
        self.lead_to(server);
        let own = self.clone();
        tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let server = own.server.load(Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                tokio::spawn(pass_on(caller, server, Arc::clone(&own.is_armed)));
            }
        });
    }

    /// Leads new connections to this server; those there are stay as they are.
    pub(crate) fn lead_to(&self, server: u16) {
        self.server.store(server, Ordering::SeqCst);
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Loses the reply to the next take, and with it the connection.
    pub(crate) fn lose_the_next_reply(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Whether that has happened.
    pub(crate) fn has_lost_one(&self) -> bool {
        !self.is_armed.load(Ordering::SeqCst)
    }
}

async fn pass_on(caller: TcpStream, server: TcpStream, is_armed: Arc<AtomicBool>) {
    let (from_caller, to_caller) = caller.into_split();
    let (from_server, to_server) = server.into_split();
    let has_taken = Arc::new(AtomicBool::new(false));
    let requests = {
        let (is_armed, has_taken) = (Arc::clone(&is_armed), Arc::clone(&has_taken));
        tokio::spawn(pump(from_caller, to_server, move |bytes| {
            if is_armed.load(Ordering::SeqCst) && bytes.windows(7).any(|window| window == b"TB.TAKE") {
                has_taken.store(true, Ordering::SeqCst);
            }
            true
        }))
    };
    // The server has answered, and so has carried out what it was sent.
    let is_to_be_lost = || has_taken.load(Ordering::SeqCst) && is_armed.swap(false, Ordering::SeqCst);
    pump(from_server, to_caller, |_| !is_to_be_lost()).await;
    requests.abort();
}

/// Passes on what comes, until something must not pass or an end closes.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut passes: impl FnMut(&[u8]) -> bool) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(len @ 1..) = from.read(&mut bytes).await {
        if !passes(&bytes[..len]) || to.write_all(&bytes[..len]).await.is_err() {
            return;
        }
    }
}
