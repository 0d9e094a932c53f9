//! Purpose: links that are slow or narrow, and whole.

use crate::support::{eventually, pattern};
use crate::wire::*;
use alluvium_testkit::proxy::{Direction, LaneShape, LinkShape};
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

async fn round_trip(stream: &mut TcpStream, bytes: &[u8]) -> Duration {
    let begin = Instant::now();
    let mut back = vec![0; bytes.len()];
    let (mut reader, mut writer) = stream.split();
    let (sent, received) = tokio::join!(writer.write_all(bytes), reader.read_exact(&mut back));
    sent.unwrap();
    received.unwrap();
    assert!(back == bytes);
    begin.elapsed()
}

/// Bytes received in the time.
async fn received_in(stream: &mut TcpStream, time: Duration) -> usize {
    let mut total = 0;
    let mut piece = vec![0; MIB];
    let end = Instant::now() + time;
    while let Ok(count) = tokio::time::timeout_at(end, stream.read(&mut piece)).await {
        total += count.unwrap();
    }
    total
}

fn assert_near(found: usize, expected: usize, what: &str) {
    assert!(
        found.abs_diff(expected) * 10 <= expected,
        "{what}: {found}, not {expected}"
    );
}

#[tokio::test]
async fn nothing_is_changed() {
    let proxy = link_to(bare(echo).await).await;
    let mut stream = connect(&proxy).await;
    let bytes = pattern(5 * MIB + 3);
    round_trip(&mut stream, &bytes).await;
    // The end of one direction leaves the other open.
    stream.write_all(b"last words").await.unwrap();
    stream.shutdown().await.unwrap();
    let (rest, end) = read_all(&mut stream).await;
    assert_eq!(rest, b"last words");
    end.unwrap();
    for direction in [Direction::Up, Direction::Down] {
        assert_eq!(proxy.counters().bytes(direction), (bytes.len() + 10) as u64);
    }
    assert_eq!(proxy.counters().connections(), 1);
    eventually("the connection has ended", || proxy.counters().connections_open() == 0).await;
    assert_eq!(proxy.counters().all_faults(), 0);
}

#[tokio::test]
async fn a_reset_stays_a_reset() {
    // Of the server.
    let server = bare(|mut stream| async move {
        if stream.read_u8().await.is_ok() {
            stream.write_all(b"half an ans").await.unwrap();
            stream.set_zero_linger().unwrap();
        }
    });
    let proxy = link_to(server.await).await;
    proxy.set_link(LinkShape::round_trip(Duration::from_millis(100), None));
    let mut stream = connect(&proxy).await;
    stream.write_all(b"?").await.unwrap();
    let (bytes, end) = read_all(&mut stream).await;
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(bytes, b"half an ans");
    // Of the client.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = link_to(listener.local_addr().unwrap()).await;
    let mut client = connect(&proxy).await;
    client.write_all(b"?").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'?');
    client.set_zero_linger().unwrap();
    drop(client);
    assert_eq!(
        read_all(&mut server).await.1.unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    // Of nobody: there is no server.
    drop(listener);
    let mut client = connect(&proxy).await;
    assert_eq!(
        read_all(&mut client).await.1.unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
}

#[tokio::test]
async fn latency_once_a_round_trip() {
    let proxy = link_to(bare(echo).await).await;
    let mut stream = connect(&proxy).await;
    let latency = Duration::from_millis(60);
    proxy.set_link(LinkShape::round_trip(latency, None));
    let mut trips = Vec::new();
    for _ in 0..5 {
        trips.push(round_trip(&mut stream, b"x").await);
    }
    trips.sort_unstable();
    assert!(trips[0] >= latency, "{trips:?}");
    assert!(trips[2] < 2 * latency, "{trips:?}");
    // One direction alone.
    let up = LaneShape {
        latency,
        ..LaneShape::default()
    };
    proxy.set_link(LinkShape {
        up,
        ..LinkShape::default()
    });
    assert_eq!(proxy.link().up, up);
    assert!(round_trip(&mut stream, b"x").await >= latency);
    proxy.set_link(LinkShape::default());
    let mut trips = Vec::new();
    for _ in 0..5 {
        trips.push(round_trip(&mut stream, b"x").await);
    }
    assert!(*trips.iter().min().unwrap() < latency / 2, "{trips:?}");
}

#[tokio::test]
async fn latency_leaves_throughput_alone() {
    let proxy = link_to(bare(echo).await).await;
    proxy.set_link(LinkShape::round_trip(Duration::from_millis(200), None));
    let mut stream = connect(&proxy).await;
    // If it waited for each read of at most 256 KiB, it would take 20 s.
    let time = round_trip(&mut stream, &pattern(48 * MIB)).await;
    assert!(time >= Duration::from_millis(200), "{time:?}");
    assert!(time < Duration::from_secs(5), "{time:?}");
}

#[tokio::test]
async fn a_cap_is_kept_and_smooth() {
    let proxy = link_to(bare(pour).await).await;
    let rate = 4 * MIB;
    let latency = Duration::from_millis(50);
    proxy.set_link(LinkShape::round_trip(latency, Some(rate as u64)));
    // Of each connection, not of all.
    let (mut first, mut second) = (connect(&proxy).await, connect(&proxy).await);
    for stream in [&mut first, &mut second] {
        stream.write_all(b"x").await.unwrap();
        stream.readable().await.unwrap();
    }
    let time = Duration::from_millis(1500);
    let (first_bytes, second_bytes) = tokio::join!(received_in(&mut first, time), received_in(&mut second, time));
    assert_near(first_bytes, rate * 3 / 2, "first");
    assert_near(second_bytes, rate * 3 / 2, "second");
    drop(second);
    let mut tenths = Vec::new();
    for _ in 0..10 {
        tenths.push(received_in(&mut first, Duration::from_millis(100)).await);
    }
    tenths.sort_unstable();
    assert_near(tenths[5], rate / 10, "the middle tenth of a second");
    // Lifted on an open connection.
    proxy.set_link(LinkShape::default());
    let bytes = received_in(&mut first, Duration::from_millis(500)).await;
    assert!(bytes > 2 * rate, "{bytes}");
}

#[tokio::test]
async fn connections_share_what_all_together_may_carry() {
    let proxy = link_to(bare(pour).await).await;
    let rate = 8 * MIB;
    proxy.set_link(LinkShape::default().shared_by_all(Some(rate as u64)));
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = connect(&proxy).await;
        stream.write_all(b"x").await.unwrap();
        stream.readable().await.unwrap();
        streams.push(stream);
    }
    let receiving = streams
        .iter_mut()
        .map(|stream| received_in(stream, Duration::from_secs(1)));
    for bytes in futures::future::join_all(receiving).await {
        assert_near(bytes, rate / 4, "one of four");
    }
    streams.truncate(1);
    // What was on its way to the others has passed.
    received_in(&mut streams[0], Duration::from_millis(300)).await;
    let bytes = received_in(&mut streams[0], Duration::from_secs(1)).await;
    assert_near(bytes, rate, "the one that is left");
}

#[tokio::test]
async fn a_cap_upwards_reaches_the_sender() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = link_to(listener.local_addr().unwrap()).await;
    let rate = 20 * MIB;
    let cap = LaneShape {
        bytes_per_second: Some(rate as u64),
        ..LaneShape::default()
    };
    proxy.set_link(LinkShape {
        up: cap,
        ..LinkShape::default()
    });
    let mut client = connect(&proxy).await;
    let (mut server, _) = listener.accept().await.unwrap();
    let sending = tokio::spawn(async move {
        let piece = vec![1; 64 * KIB];
        let mut sent = 0;
        let end = Instant::now() + Duration::from_secs(1);
        while tokio::time::timeout_at(end, client.write_all(&piece)).await.is_ok() {
            sent += piece.len();
        }
        sent
    });
    server.readable().await.unwrap();
    assert_near(received_in(&mut server, Duration::from_secs(1)).await, rate, "received");
    // More by what fits into the buffers of two sockets.
    let sent = timeout(LONG, sending).await.unwrap().unwrap();
    assert!(sent < rate + 16 * MIB, "{sent}");
}
