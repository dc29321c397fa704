use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use dp::link::{self, LinkConfig};

use super::*;
use crate::interrupt::Interrupt;
use crate::net::{End, EndConfig, make_end};
use crate::params::example;

const PORT: u16 = 4000;

fn end(port: Box<dyn dp::Port>, last: u8) -> End {
    let config = EndConfig {
        ips: vec![format!("10.0.0.{last}/24")],
        gateways: Vec::new(),
        vlan: None,
        tos: 0,
        pcap: None,
        cpu: None,
        shares_cpu: true,
        events: false,
        crc: true,
        link_timeout: None,
        is_local_wire: false,
        timeout: Duration::from_secs(10),
    };
    make_end(port, &config, &Interrupt::default()).unwrap()
}

/// Connects to a host on the same wire. That host begins to listen when `listens_at` attempts have begun, or
/// never listens if `listens_at` is `None`. Returns the outcome and the number of attempts.
fn connect(remote: &str, listens_at: Option<u32>, patience: Duration) -> (Result<(), Error>, u32) {
    let (here, there) = link::pair(&LinkConfig::default());
    let is_over = Interrupt::default();
    let of_server = is_over.clone();
    let tries = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&tries);
    let server = thread::spawn(move || {
        let mut end = end(there, 1).endpoint;
        if let Some(tries) = listens_at {
            let has_come = |_: &mut _| Ok((seen.load(Ordering::Relaxed) >= tries).then_some(()));
            end.wait("waiting for attempts", None, has_come).unwrap();
            let _listener = end.listen(PORT, 1).unwrap();
            let request = end.request(Some(Duration::from_secs(30))).unwrap();
            let queue = end.create_cq(256).unwrap();
            let qp = end.pd.create_qp(&iwarp::verbs::QpInit::new(&queue)).unwrap();
            end.accept(&request, &qp, &ConnParam::default()).unwrap();
            return;
        }
        end.wait("serving", None, |_| Ok(of_server.is_raised().then_some(()))).unwrap();
    });
    let mut end = end(here, 2).endpoint;
    let queue = end.create_cq(4096).unwrap();
    let pd = end.pd.clone();
    let param = conn_param(&example(Test::WriteBw), end.timeout, &[]).unwrap();
    let connected = end.connect(
        || {
            tries.fetch_add(1, Ordering::Relaxed);
            Ok(pd.create_qp(&iwarp::verbs::QpInit::new(&queue))?)
        },
        remote.parse().unwrap(),
        &param,
        patience,
    );
    is_over.raise();
    end.driver.linger(Duration::from_millis(20));
    server.join().unwrap();
    (connected.map(drop), tries.load(Ordering::Relaxed))
}

#[test]
fn a_server_that_does_not_listen_yet_is_tried_again() {
    let (connected, tries) = connect("10.0.0.1:4000", Some(2), STARTING);
    connected.unwrap();
    assert!((2..10).contains(&tries), "{tries} tries");
}

/// A caller with more patience than [`STARTING`] tries again for as long as its patience lasts.
#[test]
fn it_is_tried_again_as_long_as_its_caller_says() {
    let (connected, tries) = connect("10.0.0.1:4000", Some(15), Duration::from_secs(20));
    connected.unwrap();
    assert!(tries >= 15, "{tries} tries");
}

#[test]
fn a_server_that_never_listens_is_given_up() {
    for patience in [STARTING, Duration::from_millis(300)] {
        let begun = Instant::now();
        let (connected, tries) = connect("10.0.0.1:4000", None, patience);
        let error = connected.unwrap_err();
        assert!(matches!(&error, Error::Connect { reason, .. } if reason.is_refused()), "{error}");
        assert!(error.to_string().contains("start the server first"), "{error}");
        // No attempt begins after the patience is over, so the last pause of 100 ms may be left out.
        let least = patience - Duration::from_millis(100);
        assert!(tries > 1 && begun.elapsed() >= least, "{tries} tries in {:?}", begun.elapsed());
    }
}

#[test]
fn another_cause_is_told_at_once() {
    let (connected, tries) = connect("192.0.2.1:4000", None, STARTING);
    let error = connected.unwrap_err();
    let no_route = NotConnected::Error(ConnectionError::NoRoute);
    assert!(matches!(&error, Error::Connect { reason, .. } if *reason == no_route), "{error}");
    assert_eq!(tries, 1);
}
