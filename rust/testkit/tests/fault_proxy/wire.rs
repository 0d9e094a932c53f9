//! Purpose: bare servers and clients, and proxies between them.

use crate::support::{Identity, client_as, eventually};
use alluvium_testkit::proxy::{FaultProxy, LinkFault, LinkRule, ProxyConfig};
use alluvium_testkit::s3_server::S3Server;
use aws_sdk_s3::Client;
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Long enough for anything that happens at all.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// Long enough to believe that nothing happens.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);

/// Where the server listens.
pub(crate) fn address(server: &S3Server) -> SocketAddr {
    let (_, address) = server.endpoint().split_once("://").unwrap();
    address.parse().unwrap()
}

/// A proxy of requests in front of the server, and a client of it.
pub(crate) async fn proxied(server: &S3Server) -> (FaultProxy, Client) {
    let proxy = FaultProxy::start(ProxyConfig::http(address(server))).await.unwrap();
    let client = client_as(server, &proxy.endpoint(), Identity::default());
    (proxy, client)
}

/// A server that does the same with every connection, as long as the test runs.
pub(crate) async fn bare<Serve, Served>(serve: Serve) -> SocketAddr
where
    Serve: Fn(TcpStream) -> Served + Send + 'static,
    Served: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// A proxy of bytes in front of it.
pub(crate) async fn link_to(server: SocketAddr) -> FaultProxy {
    FaultProxy::start(ProxyConfig::tcp(server)).await.unwrap()
}

/// The same, with a fault for every connection.
pub(crate) async fn broken_link_to(server: SocketAddr, fault: LinkFault) -> FaultProxy {
    let proxy = link_to(server).await;
    proxy.link_faults().add(LinkRule::new(fault));
    proxy
}

pub(crate) async fn connect(proxy: &FaultProxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The next connection is accepted, and reset.
pub(crate) async fn assert_resetting(proxy: &FaultProxy) {
    let end = match TcpStream::connect(proxy.address()).await {
        Ok(mut stream) => read_all(&mut stream).await.1,
        Err(error) => Err(error),
    };
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

/// All open connections are reset, and clients know.
pub(crate) async fn reset_all(proxy: &FaultProxy) {
    proxy.reset_connections();
    eventually("nothing is open", || proxy.counters().connections_open() == 0).await;
    tokio::time::sleep(SILENCE).await;
}

/// Gives back what it gets.
pub(crate) async fn echo(mut stream: TcpStream) {
    let (mut reader, mut writer) = stream.split();
    // How the client leaves does not matter.
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
    let _ = writer.shutdown().await;
}

/// Waits for a byte, then sends without end.
pub(crate) async fn pour(mut stream: TcpStream) {
    let piece = vec![7; 1 << 16];
    if stream.read_u8().await.is_ok() {
        while stream.write_all(&piece).await.is_ok() {}
    }
}

/// Everything that comes, and how it ends.
pub(crate) async fn read_all(stream: &mut TcpStream) -> (Vec<u8>, std::io::Result<()>) {
    let mut bytes = Vec::new();
    let end = timeout(LONG, stream.read_to_end(&mut bytes)).await.expect("an end");
    (bytes, end.map(|_| ()))
}

/// Everything that comes until it falls silent.
pub(crate) async fn read_until_silence(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(read) = timeout(SILENCE, stream.read_buf(&mut bytes)).await {
        assert!(read.unwrap() > 0, "silent, not closed");
    }
    bytes
}
