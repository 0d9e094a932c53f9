//! Purpose: the connection to the server that belongs to one client connection.
//!
//! Flow: made with the first request, kept as long as both sides keep theirs, made again when the server has ended it
//! in between.
//!
//! Cancel: dropping it closes the connection.

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tracing::debug;

#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamError {
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

pub(super) struct Upstream<Sent> {
    address: SocketAddr,
    sender: Option<SendRequest<Sent>>,
    /// Drives the connection; ends with this.
    driver: JoinSet<()>,
}

impl<Sent> Upstream<Sent>
where
    Sent: Body + Send + 'static,
    Sent::Data: Send,
    Sent::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            sender: None,
            driver: JoinSet::new(),
        }
    }

    /// Sends the request and waits for the head of the answer.
    pub(super) async fn send(&mut self, request: Request<Sent>) -> Result<Response<Incoming>, UpstreamError> {
        let mut request = request;
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(request).await {
                Ok(answer) => {
                    self.sender = Some(sender);
                    return Ok(answer);
                }
                // The server ended the connection at the same moment; not a byte of the request has been sent.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let mut sender = self.connect().await?;
        let answer = sender.send_request(request).await?;
        self.sender = Some(sender);
        Ok(answer)
    }

    async fn connect(&mut self) -> Result<SendRequest<Sent>, UpstreamError> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::Builder::new()
            .preserve_header_case(true)
            .handshake(TokioIo::new(stream))
            .await?;
        self.driver.abort_all();
        self.driver.spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "the server's connection ended");
            }
        });
        Ok(sender)
    }
}
