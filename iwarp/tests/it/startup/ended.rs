//! A user starts MPA on a connection that has just ended (RFC 5044 section 7.1.5).

use std::sync::{Arc, Mutex};

use crate::common::hooked::Hooks;
use crate::common::{PORT, Testbed};
use dp::{Burst, Mbuf, Port};
use iwarp::verbs::{CmId, ConnParam, ListenOptions, QpState, QueuePair, StreamOptions};

/// Position of the TCP flags in an IPv4 frame without a VLAN tag.
const TCP_FLAGS_AT: usize = 47;
const RST: u8 = 4;

/// Starts MPA, as another thread would, when the first frame with RST arrives and before the engine processes
/// it.
struct StartAtReset(Arc<Mutex<Option<(CmId, QueuePair)>>>);

impl Hooks for StartAtReset {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let count = port.rx_burst(now_us, frames);
        let is_reset = |frame: &Mbuf| frame.head().get(TCP_FLAGS_AT).is_some_and(|flags| flags & RST != 0);
        if frames.iter().any(is_reset)
            && let Some((id, qp)) = self.0.lock().unwrap().take()
        {
            id.start_initiator(&qp, &ConnParam::default()).unwrap();
        }
        count
    }
}

/// If the connection ends while its user starts MPA, the queue pair also ends.
#[test]
fn a_start_whose_connection_is_gone_ends_its_queue_pair() {
    let armed = Arc::new(Mutex::new(None));
    let mut pair = Testbed::new().hook_a(StartAtReset(Arc::clone(&armed))).hosts();
    let listener = pair.b.context.create_id(&pair.b.channel);
    let options = StreamOptions::default();
    listener.listen_with(&ListenOptions { streaming: Some(options), ..ListenOptions::new(PORT) }).unwrap();
    pair.poll();
    let id = pair.a.context.create_id(&pair.a.channel);
    id.connect_stream(pair.b.address, options, &ConnParam::default()).unwrap();
    let _event = told!(pair.event_a(), StreamEstablished { .. });
    let qp = pair.a.qp();
    *armed.lock().unwrap() = Some((id, qp.clone()));
    pair.event_b().id.abort();
    told!(pair.event_a(), Disconnected { error: Some(_), .. });
    pair.until(|_| (qp.state() == QpState::Error).then_some(()));
}
