//! The states of a queue pair, and the attributes that each change of state needs (from InfiniBand's table,
//! see `ibv_modify_qp(3)`).

use iwarp::verbs::{QpState, QpType};
use libc::c_uint;

use crate::ffi::abi::{EINVAL, EOPNOTSUPP, Outcome};
use crate::ffi::sys;

/// The effect of a call of `ibv_modify_qp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    /// The call does not change the state. It may set attributes.
    None,
    To(sys::ibv_qp_state),
    ToInit,
    /// The queue pair enters RTR. The attributes name the peer.
    ToRtr,
    ToError,
    ToReset,
}

const INIT: c_uint = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
const RTR: c_uint = sys::IBV_QP_AV
    | sys::IBV_QP_PATH_MTU
    | sys::IBV_QP_DEST_QPN
    | sys::IBV_QP_RQ_PSN
    | sys::IBV_QP_MAX_DEST_RD_ATOMIC
    | sys::IBV_QP_MIN_RNR_TIMER;
const RTR_MAY: c_uint = sys::IBV_QP_ALT_PATH | sys::IBV_QP_ACCESS_FLAGS | sys::IBV_QP_PKEY_INDEX;
const RTS: c_uint = sys::IBV_QP_TIMEOUT
    | sys::IBV_QP_RETRY_CNT
    | sys::IBV_QP_RNR_RETRY
    | sys::IBV_QP_SQ_PSN
    | sys::IBV_QP_MAX_QP_RD_ATOMIC;
const RTS_MAY: c_uint = sys::IBV_QP_CUR_STATE
    | sys::IBV_QP_ALT_PATH
    | sys::IBV_QP_ACCESS_FLAGS
    | sys::IBV_QP_MIN_RNR_TIMER
    | sys::IBV_QP_PATH_MIG_STATE;
const AGAIN: c_uint = sys::IBV_QP_ACCESS_FLAGS
    | sys::IBV_QP_MIN_RNR_TIMER
    | sys::IBV_QP_CUR_STATE
    | sys::IBV_QP_ALT_PATH
    | sys::IBV_QP_PATH_MIG_STATE;

/// The attributes that the changes of state of a queue pair of type RC or UC need, and those that they may
/// have.
struct Attributes {
    rtr: c_uint,
    rts: c_uint,
    rts_may: c_uint,
    again: c_uint,
    held_again: c_uint,
    /// Whether a program may set only the access flags in INIT.
    init_by_rights: bool,
}

const OF_RC: Attributes = Attributes {
    rtr: RTR,
    rts: RTS,
    rts_may: RTS_MAY,
    again: AGAIN,
    held_again: c_uint::MAX,
    // iWARP drivers require only the access flags.
    init_by_rights: true,
};

/// The type UC has no answers of the peer, so no attributes of retries, of Reads and of atomics.
const OF_UC: Attributes = Attributes {
    rtr: RTR & !(sys::IBV_QP_MAX_DEST_RD_ATOMIC | sys::IBV_QP_MIN_RNR_TIMER),
    rts: sys::IBV_QP_SQ_PSN,
    rts_may: RTS_MAY & !sys::IBV_QP_MIN_RNR_TIMER,
    again: AGAIN & !sys::IBV_QP_MIN_RNR_TIMER,
    held_again: sys::IBV_QP_AV
        | sys::IBV_QP_ALT_PATH
        | sys::IBV_QP_ACCESS_FLAGS
        | sys::IBV_QP_PKEY_INDEX
        | sys::IBV_QP_PATH_MIG_STATE,
    init_by_rights: false,
};

/// Checks a call of `ibv_modify_qp` for a queue pair of this type in state `from`. Returns the effect of the
/// call.
pub(crate) fn check_type(
    qp_type: QpType,
    from: sys::ibv_qp_state,
    attr: &sys::ibv_qp_attr,
    mask: c_uint,
    is_managed: bool,
) -> Outcome<Transition> {
    match qp_type {
        QpType::Rc => check(from, attr, mask, is_managed),
        QpType::Uc => check_connected(&OF_UC, from, attr, mask, is_managed),
        QpType::Ud { .. } => check_ud(from, attr, mask, is_managed),
    }
}

/// As [`check_type`], for a queue pair of type RC.
fn check(
    from: sys::ibv_qp_state,
    attr: &sys::ibv_qp_attr,
    mask: c_uint,
    is_managed: bool,
) -> Outcome<Transition> {
    check_connected(&OF_RC, from, attr, mask, is_managed)
}

/// As [`check_type`], for a queue pair of a type with connections.
fn check_connected(
    table: &Attributes,
    from: sys::ibv_qp_state,
    attr: &sys::ibv_qp_attr,
    mask: c_uint,
    is_managed: bool,
) -> Outcome<Transition> {
    use sys::{IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD};
    if mask & sys::IBV_QP_PORT != 0 && attr.port_num != 1 {
        return Err(EINVAL);
    }
    if mask & sys::IBV_QP_PKEY_INDEX != 0 && attr.pkey_index != 0 {
        return Err(EINVAL);
    }
    if mask & sys::IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(EINVAL);
    }
    if mask & sys::IBV_QP_STATE == 0 {
        return Ok(Transition::None);
    }
    let rest = mask & !sys::IBV_QP_STATE;
    let has = |must: c_uint, may: c_uint| rest & must == must && rest & !(must | may) == 0;
    let to = attr.qp_state;
    if is_managed {
        // The connection manager changes the state. Programs only repeat the connection manager's changes
        // with the attributes of `rdma_init_qp_attr`, stop and resume the send queue, end the connection, or
        // reset the queue pair.
        return match to {
            IBV_QPS_ERR => Ok(Transition::ToError),
            IBV_QPS_RESET => Ok(Transition::ToReset),
            IBV_QPS_INIT if from == IBV_QPS_RESET => Ok(Transition::To(IBV_QPS_INIT)),
            IBV_QPS_SQD if from == IBV_QPS_RTS => Ok(Transition::To(IBV_QPS_SQD)),
            IBV_QPS_RTS if from == IBV_QPS_SQD => Ok(Transition::To(IBV_QPS_RTS)),
            _ => Ok(Transition::None),
        };
    }
    match (from, to) {
        (_, IBV_QPS_RESET) if rest == 0 => Ok(Transition::ToReset),
        (_, IBV_QPS_ERR) if rest == 0 => {
            Ok(if from == IBV_QPS_ERR { Transition::None } else { Transition::ToError })
        }
        (IBV_QPS_RESET, IBV_QPS_INIT)
            if has(INIT, 0) || (table.init_by_rights && rest == sys::IBV_QP_ACCESS_FLAGS) =>
        {
            Ok(Transition::ToInit)
        }
        (IBV_QPS_INIT, IBV_QPS_INIT) if has(0, INIT) => Ok(Transition::None),
        (IBV_QPS_INIT, IBV_QPS_RTR) if has(table.rtr, RTR_MAY) => Ok(Transition::ToRtr),
        (IBV_QPS_RTR, IBV_QPS_RTS) if has(table.rts, table.rts_may) => Ok(Transition::To(IBV_QPS_RTS)),
        (IBV_QPS_RTS, IBV_QPS_RTS) if has(0, table.again) => Ok(Transition::None),
        (IBV_QPS_RTS, IBV_QPS_SQD) if has(0, sys::IBV_QP_EN_SQD_ASYNC_NOTIFY) => {
            Ok(Transition::To(IBV_QPS_SQD))
        }
        (IBV_QPS_SQD, IBV_QPS_RTS) if has(0, table.again) => Ok(Transition::To(IBV_QPS_RTS)),
        (IBV_QPS_SQD, IBV_QPS_SQD) if has(0, table.held_again) => Ok(Transition::None),
        (_, state) if state > IBV_QPS_ERR => Err(EOPNOTSUPP),
        _ => Err(EINVAL),
    }
}

/// As [`check_type`], for a queue pair of type UD.
fn check_ud(
    from: sys::ibv_qp_state,
    attr: &sys::ibv_qp_attr,
    mask: c_uint,
    is_managed: bool,
) -> Outcome<Transition> {
    use sys::{IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD};
    const INIT: c_uint = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_QKEY;
    const KEYS: c_uint = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_QKEY;
    const AGAIN: c_uint = sys::IBV_QP_CUR_STATE | sys::IBV_QP_QKEY;
    let to = match mask & sys::IBV_QP_STATE {
        0 => from,
        _ => attr.qp_state,
    };
    if is_managed || matches!((from, to), (_, IBV_QPS_RESET | IBV_QPS_ERR)) || to > IBV_QPS_ERR {
        return check(from, attr, mask, is_managed);
    }
    // Checks the values of the attributes.
    check(from, attr, mask & !sys::IBV_QP_STATE, is_managed)?;
    if mask & sys::IBV_QP_STATE == 0 {
        return Ok(Transition::None);
    }
    let rest = mask & !sys::IBV_QP_STATE;
    let has = |must: c_uint, may: c_uint| rest & must == must && rest & !(must | may) == 0;
    match (from, to) {
        (IBV_QPS_RESET, IBV_QPS_INIT) if has(INIT, 0) => Ok(Transition::ToInit),
        (IBV_QPS_INIT, IBV_QPS_INIT) if has(0, INIT) => Ok(Transition::None),
        (IBV_QPS_INIT, IBV_QPS_RTR) if has(0, KEYS) => Ok(Transition::ToRtr),
        (IBV_QPS_RTR, IBV_QPS_RTS) if has(sys::IBV_QP_SQ_PSN, AGAIN) => Ok(Transition::To(IBV_QPS_RTS)),
        (IBV_QPS_RTS, IBV_QPS_RTS) if has(0, AGAIN) => Ok(Transition::None),
        (IBV_QPS_RTS, IBV_QPS_SQD) if has(0, sys::IBV_QP_EN_SQD_ASYNC_NOTIFY) => {
            Ok(Transition::To(IBV_QPS_SQD))
        }
        (IBV_QPS_SQD, IBV_QPS_RTS) if has(0, AGAIN) => Ok(Transition::To(IBV_QPS_RTS)),
        (IBV_QPS_SQD, IBV_QPS_SQD) if has(0, KEYS) => Ok(Transition::None),
        _ => Err(EINVAL),
    }
}

/// The state that the program sees. `stream` is the state of the queue pair's stream, and `last` is the state
/// that was set last. If the stream of a connected queue pair has failed, the program sees ERR.
///
/// The event of a new connection reaches the program after the poll in which the connection was made. Before
/// the event, another thread of the program may receive data of that poll, and may post an answer at once. So
/// for such a connection the program sees the state of the stream.
pub(crate) fn seen(stream: QpState, last: sys::ibv_qp_state, is_managed: bool) -> sys::ibv_qp_state {
    let was_connected = last >= sys::IBV_QPS_RTR;
    match stream {
        QpState::Terminate | QpState::Error if was_connected || is_managed => sys::IBV_QPS_ERR,
        QpState::Rts | QpState::Closing if is_managed && !was_connected => sys::IBV_QPS_RTS,
        _ => last,
    }
}

/// Copies the attributes that the mask names.
pub(crate) fn merge(into: &mut sys::ibv_qp_attr, from: &sys::ibv_qp_attr, mask: c_uint) {
    macro_rules! take {
        ($($bit:ident: $($field:ident),*;)*) => {
            $(if mask & sys::$bit != 0 { $(into.$field = from.$field;)* })*
        };
    }
    take! {
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_QKEY: qkey;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
        IBV_QP_ALT_PATH: alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_PATH_MIG_STATE: path_mig_state;
        IBV_QP_DEST_QPN: dest_qp_num;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(state: sys::ibv_qp_state) -> sys::ibv_qp_attr {
        sys::ibv_qp_attr { qp_state: state, port_num: 1, ..Default::default() }
    }

    /// The masks that perftest, `ibv_rc_pingpong` and qperf pass are accepted. If a single bit of such a mask
    /// is missing, the call is refused, except if the bit is `IBV_QP_STATE`.
    #[test]
    fn the_masks_of_programs_pass_and_each_missing_bit_is_refused() {
        for (from, state, mask, change) in [
            (sys::IBV_QPS_RESET, sys::IBV_QPS_INIT, 0x39, Transition::ToInit),
            (sys::IBV_QPS_INIT, sys::IBV_QPS_RTR, 0x129181, Transition::ToRtr),
            (sys::IBV_QPS_RTR, sys::IBV_QPS_RTS, 0x12e01, Transition::To(sys::IBV_QPS_RTS)),
        ] {
            assert_eq!(check(from, &to(state), mask, false), Ok(change));
            for bit in (1..32).map(|bit| 1 << bit).filter(|bit| mask & bit != 0) {
                assert_eq!(
                    check(from, &to(state), mask & !bit, false),
                    Err(EINVAL),
                    "{state} without {bit:#x}"
                );
            }
        }
    }

    /// Each change of a queue pair of type UC needs its attributes, and refuses those of retries and Reads.
    #[test]
    fn a_queue_pair_of_type_uc_has_no_attributes_of_answers() {
        use sys::{IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD};
        let check = |from, state, mask| check_type(QpType::Uc, from, &to(state), mask, false);
        for (from, state, needed, may, change) in [
            (IBV_QPS_RESET, IBV_QPS_INIT, 0x39, 0, Transition::ToInit),
            (IBV_QPS_INIT, IBV_QPS_INIT, 0x1, 0x38, Transition::None),
            (IBV_QPS_INIT, IBV_QPS_RTR, 0x10_1181, 0x4018, Transition::ToRtr),
            (IBV_QPS_RTR, IBV_QPS_RTS, 0x1_0001, 0x4_400a, Transition::To(IBV_QPS_RTS)),
            (IBV_QPS_RTS, IBV_QPS_RTS, 0x1, 0x4_400a, Transition::None),
            (IBV_QPS_RTS, IBV_QPS_SQD, 0x1, 0x4, Transition::To(IBV_QPS_SQD)),
            (IBV_QPS_SQD, IBV_QPS_SQD, 0x1, 0x4_4098, Transition::None),
            (IBV_QPS_SQD, IBV_QPS_RTS, 0x1, 0x4_400a, Transition::To(IBV_QPS_RTS)),
        ] {
            for bit in (1..21).map(|bit| 1 << bit) {
                let mask = if bit == sys::IBV_QP_CUR_STATE { needed } else { needed | bit };
                let is_known = needed & bit != 0 || may & bit != 0 || bit == sys::IBV_QP_CUR_STATE;
                let expected = if is_known { Ok(change) } else { Err(EINVAL) };
                assert_eq!(check(from, state, mask), expected, "{from} to {state} with {bit:#x}");
                if needed & bit != 0 {
                    assert_eq!(check(from, state, needed & !bit), Err(EINVAL), "without {bit:#x}");
                }
            }
        }
        assert_eq!(check(IBV_QPS_RESET, IBV_QPS_INIT, 0x9), Err(EINVAL), "the access flags alone");
        assert_eq!(super::check(IBV_QPS_RESET, &to(IBV_QPS_INIT), 0x9, false), Ok(Transition::ToInit));
    }

    #[test]
    fn wrong_changes_are_refused_and_error_and_reset_are_always_allowed() {
        let states = [sys::IBV_QPS_RESET, sys::IBV_QPS_INIT, sys::IBV_QPS_RTR, sys::IBV_QPS_RTS];
        for from in states {
            assert_eq!(check(from, &to(sys::IBV_QPS_ERR), sys::IBV_QP_STATE, false), Ok(Transition::ToError));
            assert_eq!(
                check(from, &to(sys::IBV_QPS_RESET), sys::IBV_QP_STATE, false),
                Ok(Transition::ToReset)
            );
        }
        let all = c_uint::MAX & !(sys::IBV_QP_CUR_STATE | sys::IBV_QP_PKEY_INDEX);
        assert_eq!(check(sys::IBV_QPS_RESET, &to(sys::IBV_QPS_RTS), all, false), Err(EINVAL));
        assert_eq!(check(sys::IBV_QPS_INIT, &to(sys::IBV_QPS_RTS), 0x12e01, false), Err(EINVAL));
        assert_eq!(check(sys::IBV_QPS_ERR, &to(sys::IBV_QPS_RTS), 0x12e01, false), Err(EINVAL));
        let wrong_port = sys::ibv_qp_attr { port_num: 2, ..to(sys::IBV_QPS_INIT) };
        assert_eq!(check(sys::IBV_QPS_RESET, &wrong_port, 0x39, false), Err(EINVAL));
    }

    #[test]
    fn a_stream_that_runs_or_has_failed_counts_before_the_event_that_says_so() {
        use sys::{IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD};
        for (stream, last, is_managed, state) in [
            (QpState::Idle, IBV_QPS_INIT, true, IBV_QPS_INIT),
            (QpState::Rts, IBV_QPS_INIT, true, IBV_QPS_RTS),
            (QpState::Closing, IBV_QPS_INIT, true, IBV_QPS_RTS),
            (QpState::Terminate, IBV_QPS_INIT, true, IBV_QPS_ERR),
            (QpState::Error, IBV_QPS_RTS, true, IBV_QPS_ERR),
            (QpState::Rts, IBV_QPS_SQD, true, IBV_QPS_SQD),
            // Without the connection manager, the queue pair enters RTS only when the program says so.
            (QpState::Rts, IBV_QPS_RTR, false, IBV_QPS_RTR),
            (QpState::Error, IBV_QPS_RTR, false, IBV_QPS_ERR),
        ] {
            assert_eq!(seen(stream, last, is_managed), state, "{stream:?} after {last}");
        }
    }

    /// The state of the queue pair of an `rdma_cm_id` is that of its connection. Programs may initialize the
    /// queue pair, stop and resume its sends, end its connection, and reset the queue pair. All other changes
    /// succeed without effect.
    #[test]
    fn the_state_of_an_identifiers_queue_pair_is_that_of_its_connection() {
        use sys::{IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD};
        let states = [IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_ERR];
        for from in states {
            for state in states {
                let change = match (from, state) {
                    (_, IBV_QPS_ERR) => Transition::ToError,
                    (_, IBV_QPS_RESET) => Transition::ToReset,
                    (IBV_QPS_RESET, IBV_QPS_INIT)
                    | (IBV_QPS_RTS, IBV_QPS_SQD)
                    | (IBV_QPS_SQD, IBV_QPS_RTS) => Transition::To(state),
                    _ => Transition::None,
                };
                assert_eq!(check(from, &to(state), sys::IBV_QP_STATE, true), Ok(change), "{from} to {state}");
            }
        }
    }

    #[test]
    fn a_queue_pair_in_error_stays_there_and_one_that_never_connected_has_no_stream() {
        let again = check(sys::IBV_QPS_ERR, &to(sys::IBV_QPS_ERR), sys::IBV_QP_STATE, false);
        assert_eq!(again, Ok(Transition::None));
        for last in [sys::IBV_QPS_RESET, sys::IBV_QPS_INIT] {
            assert_eq!(seen(QpState::Error, last, false), last);
        }
    }

    /// Each bit of a mask selects its own attributes and no others.
    #[test]
    fn a_mask_names_the_attributes_that_change() {
        let [old, new] = [1, 2].map(|value: u8| sys::ibv_qp_attr {
            qp_access_flags: value.into(),
            pkey_index: value.into(),
            port_num: value,
            qkey: value.into(),
            path_mtu: value.into(),
            timeout: value,
            retry_cnt: value,
            rnr_retry: value,
            rq_psn: value.into(),
            max_rd_atomic: value,
            min_rnr_timer: value,
            sq_psn: value.into(),
            max_dest_rd_atomic: value,
            path_mig_state: value.into(),
            dest_qp_num: value.into(),
            ah_attr: sys::ibv_ah_attr { sl: value, ..Default::default() },
            alt_ah_attr: sys::ibv_ah_attr { sl: value, ..Default::default() },
            alt_pkey_index: value.into(),
            alt_port_num: value,
            alt_timeout: value,
            ..Default::default()
        });
        let values = |attr: &sys::ibv_qp_attr| {
            [
                (sys::IBV_QP_ACCESS_FLAGS, attr.qp_access_flags),
                (sys::IBV_QP_PKEY_INDEX, attr.pkey_index.into()),
                (sys::IBV_QP_PORT, attr.port_num.into()),
                (sys::IBV_QP_QKEY, attr.qkey),
                (sys::IBV_QP_AV, attr.ah_attr.sl.into()),
                (sys::IBV_QP_PATH_MTU, attr.path_mtu),
                (sys::IBV_QP_TIMEOUT, attr.timeout.into()),
                (sys::IBV_QP_RETRY_CNT, attr.retry_cnt.into()),
                (sys::IBV_QP_RNR_RETRY, attr.rnr_retry.into()),
                (sys::IBV_QP_RQ_PSN, attr.rq_psn),
                (sys::IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic.into()),
                (sys::IBV_QP_ALT_PATH, attr.alt_ah_attr.sl.into()),
                (sys::IBV_QP_ALT_PATH, attr.alt_pkey_index.into()),
                (sys::IBV_QP_ALT_PATH, attr.alt_port_num.into()),
                (sys::IBV_QP_ALT_PATH, attr.alt_timeout.into()),
                (sys::IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer.into()),
                (sys::IBV_QP_SQ_PSN, attr.sq_psn),
                (sys::IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic.into()),
                (sys::IBV_QP_PATH_MIG_STATE, attr.path_mig_state),
                (sys::IBV_QP_DEST_QPN, attr.dest_qp_num),
            ]
        };
        for mask in (0..32).map(|bit| 1 << bit) {
            let mut attr = old;
            merge(&mut attr, &new, mask);
            for (of, value) in values(&attr) {
                assert_eq!(value, if of == mask { 2 } else { 1 }, "the field of {of:#x} with {mask:#x}");
            }
        }
    }
}
