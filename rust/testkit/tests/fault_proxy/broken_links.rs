//! Purpose: links that break, fall silent, or are not there.

use crate::support::{Identity, client_as, eventually, get, pattern, put, server};
use crate::wire::*;
use alluvium_testkit::proxy::{Availability, Direction, FaultKind, LinkFault, LinkRule};
use alluvium_testkit::s3_server::{S3Server, S3ServerConfig, TlsMode};
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

const PIECE: usize = 1_000_000;

#[tokio::test]
async fn reset_at_a_byte_down() {
    for bytes in [0, 1, 300_000, PIECE as u64] {
        let direction = Direction::Down;
        let proxy = broken_link_to(bare(echo).await, LinkFault::ResetAt { direction, bytes }).await;
        let mut stream = connect(&proxy).await;
        stream.write_all(&pattern(PIECE)).await.unwrap();
        let (got, end) = read_all(&mut stream).await;
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(got.len() as u64, bytes);
        assert!(got == pattern(PIECE)[..got.len()]);
        assert_eq!(proxy.counters().faults(FaultKind::ResetAt), 1);
    }
}

#[tokio::test]
async fn reset_at_a_byte_up() {
    for bytes in [0, 1, 300_000] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let direction = Direction::Up;
        let fault = LinkFault::ResetAt { direction, bytes };
        let proxy = broken_link_to(listener.local_addr().unwrap(), fault).await;
        let mut client = connect(&proxy).await;
        let (mut server, _) = listener.accept().await.unwrap();
        // It may break before everything has been taken.
        let _ = client.write_all(&pattern(PIECE)).await;
        for stream in [&mut server, &mut client] {
            let (got, end) = read_all(stream).await;
            assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
            if !got.is_empty() {
                assert_eq!(got.len() as u64, bytes);
            }
        }
        assert_eq!(proxy.counters().bytes(Direction::Up), bytes);
    }
}

#[tokio::test]
async fn a_byte_that_never_comes_resets_nothing() {
    let fault = LinkFault::ResetAt {
        direction: Direction::Down,
        bytes: 100,
    };
    let proxy = broken_link_to(bare(echo).await, fault).await;
    let mut stream = connect(&proxy).await;
    stream.write_all(&[1; 99]).await.unwrap();
    stream.shutdown().await.unwrap();
    let (got, end) = read_all(&mut stream).await;
    end.unwrap();
    assert_eq!((got.len(), proxy.counters().all_faults()), (99, 0));
}

#[tokio::test]
async fn stall_at_a_byte_down() {
    for bytes in [0, 300_000] {
        let fault = LinkFault::StallAt {
            direction: Direction::Down,
            bytes,
        };
        let proxy = broken_link_to(bare(echo).await, fault).await;
        let mut stream = connect(&proxy).await;
        stream.write_all(&pattern(PIECE)).await.unwrap();
        let got = read_until_silence(&mut stream).await;
        assert_eq!(got.len() as u64, bytes);
        assert_eq!(proxy.counters().faults(FaultKind::StallAt), 1);
        assert_eq!(proxy.counters().connections_open(), 1);
        drop(stream);
        eventually("it has ended with its client", || {
            proxy.counters().connections_open() == 0
        })
        .await;
    }
}

#[tokio::test]
async fn stall_at_a_byte_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let fault = LinkFault::StallAt {
        direction: Direction::Up,
        bytes: 300_000,
    };
    let proxy = broken_link_to(listener.local_addr().unwrap(), fault).await;
    let mut client = connect(&proxy).await;
    let (mut server, _) = listener.accept().await.unwrap();
    // The sender feels it, once buffers are full.
    let everything = vec![1; 64 << 20];
    assert!(timeout(2 * SILENCE, client.write_all(&everything)).await.is_err());
    assert_eq!(read_until_silence(&mut server).await.len(), 300_000);
    // The other direction goes on.
    server.write_all(b"hello?").await.unwrap();
    let mut heard = [0; 6];
    timeout(LONG, client.read_exact(&mut heard)).await.unwrap().unwrap();
    // An end would wait behind what nobody takes.
    client.set_zero_linger().unwrap();
    drop(client);
    assert!(read_all(&mut server).await.0.is_empty());
    eventually("it has ended with its client", || {
        proxy.counters().connections_open() == 0
    })
    .await;
}

#[tokio::test]
async fn a_black_hole_and_a_refusal() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = link_to(listener.local_addr().unwrap()).await;
    let faults = proxy.link_faults();
    faults.add(LinkRule::new(LinkFault::BlackHole).times(1));
    faults.add(LinkRule::new(LinkFault::Refuse).skip(1).times(1));
    let mut stream = connect(&proxy).await;
    stream.write_all(&pattern(PIECE)).await.unwrap();
    assert_eq!(read_until_silence(&mut stream).await, b"");
    assert!(
        timeout(SILENCE, listener.accept()).await.is_err(),
        "the server hears of nothing"
    );
    drop(stream);
    eventually("it has ended with its client", || {
        proxy.counters().connections_open() == 0
    })
    .await;
    // Passed by the first rule, that is used up, and by the second, that skips it.
    let (mut whole, (mut server, _)) = (connect(&proxy).await, listener.accept().await.unwrap());
    whole.write_all(b"x").await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'x');
    assert_resetting(&proxy).await;
    for kind in [FaultKind::BlackHole, FaultKind::Refuse] {
        assert_eq!(proxy.counters().faults(kind), 1);
    }
}

#[tokio::test]
async fn down_and_up_again() {
    let server = server().await;
    let proxy = link_to(address(&server)).await;
    let client = client_as(&server, &proxy.endpoint(), Identity::default());
    put(&client, "k", b"hello").await;
    for _ in 0..2 {
        proxy.set_availability(Availability::Down).await.unwrap();
        let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // A connection that is open stays.
        assert_eq!(get(&client, "k").await, b"hello");
        reset_all(&proxy).await;
        assert!(client.get_object().bucket("test-bucket").key("k").send().await.is_err());
        proxy.set_availability(Availability::Resetting).await.unwrap();
        assert_resetting(&proxy).await;
        proxy.set_availability(Availability::Up).await.unwrap();
        assert_eq!(get(&client, "k").await, b"hello");
    }
    assert_eq!(proxy.counters().faults(FaultKind::Refuse), 2);
}

#[tokio::test]
async fn open_connections_are_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = link_to(listener.local_addr().unwrap()).await;
    let mut client = connect(&proxy).await;
    client.write_all(b"x").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'x');
    proxy.reset_connections();
    for stream in [&mut client, &mut server] {
        assert_eq!(read_all(stream).await.1.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn tls_passes_through_and_is_slow() {
    let server = S3Server::start(S3ServerConfig {
        tls: TlsMode::OwnAuthority { directory: None },
        ..S3ServerConfig::default()
    });
    let server = server.await.unwrap();
    let proxy = link_to(address(&server)).await;
    let client = || client_as(&server, &format!("https://{}", proxy.address()), Identity::default());
    put(&client(), "k", b"hello").await;
    let delay = Duration::from_millis(500);
    proxy
        .link_faults()
        .add(LinkRule::new(LinkFault::SlowStart { delay }).times(1));
    let begin = Instant::now();
    let slow = client();
    assert_eq!(get(&slow, "k").await, b"hello");
    assert!(begin.elapsed() >= delay);
    // The connection is slow to begin, not later.
    let mut times = Vec::new();
    for _ in 0..3 {
        let begin = Instant::now();
        assert_eq!(get(&slow, "k").await, b"hello");
        times.push(begin.elapsed());
    }
    assert!(*times.iter().min().unwrap() < delay, "{times:?}");
    assert_eq!(proxy.counters().faults(FaultKind::SlowStart), 1);
    // A handshake that hangs ends with the client's patience.
    proxy.link_faults().clear();
    proxy.link_faults().add(LinkRule::new(LinkFault::StallAt {
        direction: Direction::Down,
        bytes: 0,
    }));
    let hanging = client();
    let request = hanging.get_object().bucket("test-bucket").key("k").send();
    assert!(timeout(SILENCE, request).await.is_err());
}
