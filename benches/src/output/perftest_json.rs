//! `--out_json`: the last row as JSON, with perftest's names for its figures.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::errors::Error;
use crate::lines;
use crate::params::{AtomicKind, Params, Verb};
use crate::runs::{Figures, Row};
use crate::table::Unit;

/// Writes the object of `row`.
///
/// # Errors
/// Returns [`Error::System`] if the file cannot be written.
pub(super) fn write(
    path: &Path,
    params: &Params,
    unit: Unit,
    row: &Row,
    with_cpu: bool,
) -> Result<(), Error> {
    let failed = |source| Error::System { what: format!("cannot write {}", path.display()), source };
    let text = serde_json::to_string_pretty(&document(params, unit, row, with_cpu));
    lines::save(path, (text.map_err(|error| failed(error.into()))? + "\n").as_bytes())
}

fn document(params: &Params, unit: Unit, row: &Row, with_cpu: bool) -> Value {
    let mut results = match row.figures {
        Figures::Bandwidth(figures) => json!({
            "MsgSize": row.size,
            "n_iterations": row.messages,
            "BW_peak": unit.of(figures.peak),
            "BW_average": unit.of(figures.average),
            "MsgRate": figures.messages_per_s / 1e6,
        }),
        Figures::Latency(l) => json!({
            "MsgSize": row.size,
            "n_iterations": row.messages,
            "t_min": l.min_us,
            "t_max": l.max_us,
            "t_typical": l.typical_us,
            "t_avg": l.avg_us,
            "t_stdev": l.stdev_us,
            "percentile_99": l.p99_us,
            "percentile_99.9": l.p999_us,
        }),
    };
    if with_cpu {
        results["CPU_util"] = row.cpu_percent.into();
    }
    json!({ "test_info": test_info(params), "results": results })
}

fn test_info(params: &Params) -> Value {
    let on = |is_on: bool| if is_on { "ON" } else { "OFF" };
    let mut info = Map::new();
    let mut put = |name: &str, value: Value| {
        info.insert(name.to_owned(), value);
    };
    put("test", test_name(params).into());
    put("Dual_port", "OFF".into());
    put("Device", "uwarp".into());
    put("Number_of_qps", params.qps.into());
    put("Transport_type", "IW".into());
    put("Connection_type", "RC".into());
    put("Using_SRQ", on(false).into());
    put("TX_depth", params.tx_depth.into());
    if params.post_list > 1 {
        put("Post_List", params.post_list.into());
    }
    if params.test.verb().uses_receives() {
        put("Recv_Post_List", params.recv_post_list.into());
        put("RX_depth", params.receives().into());
    }
    if !params.test.is_latency() {
        put("CQ_Moderation", params.cq_mod.into());
    }
    put("Link_type", "Ethernet".into());
    put("Max_inline_data", params.inline.into());
    if params.test.verb().is_answered() {
        put("Outstand_reads", params.outs.into());
    }
    put("rdma_cm_QPs", on(true).into());
    put("Data_ex_method", "rdma_cm".into());
    info.into()
}

/// The name of the test, as RDMA_Write_BW_Test or Atomic_FETCH_AND_ADD_Latency_Test.
fn test_name(params: &Params) -> String {
    let verb = match (params.test.verb(), params.atomic) {
        (Verb::Write, _) => "RDMA_Write_",
        (Verb::Read, _) => "RDMA_Read_",
        (Verb::Send, _) => "Send_",
        (Verb::WriteImmediate, _) => "RDMA_Write_imm_",
        (Verb::Atomic, AtomicKind::CompareSwap) => "Atomic_CMP_AND_SWAP_",
        (Verb::Atomic, AtomicKind::FetchAdd) => "Atomic_FETCH_AND_ADD_",
    };
    let ways = if params.bidirectional { "Bidirectional_" } else { "" };
    let lists = if params.post_list > 1 { "Post_List_" } else { "" };
    let kind = if params.test.is_latency() { "Latency_" } else { "BW_" };
    format!("{verb}{ways}{lists}{kind}Test")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::LatencySummary;
    use crate::params::{Test, example};
    use crate::runs::BandwidthRow;

    #[test]
    fn figures_have_the_names_of_perftest() {
        let figures = BandwidthRow { average: 1e9, peak: 2e9, messages_per_s: 5e5, ..Default::default() };
        let row = Row {
            size: 64,
            messages: 7,
            figures: Figures::Bandwidth(figures),
            cpu_percent: 50.0,
            ..Row::default()
        };
        let params = Params { bidirectional: true, ..example(Test::SendBw) };
        let value = document(&params, Unit::GigabitsPerSecond, &row, true);
        assert_eq!(value["test_info"]["test"], "Send_Bidirectional_BW_Test");
        assert_eq!(value["test_info"]["RX_depth"], 512);
        let results = json!({ "MsgSize": 64, "n_iterations": 7, "BW_peak": 16.0, "BW_average": 8.0, "MsgRate": 0.5,
            "CPU_util": 50.0 });
        assert_eq!(value["results"], results);
        let latency = LatencySummary { p999_us: 3.0, ..Default::default() };
        let row = Row { figures: Figures::Latency(latency), ..row };
        let value = document(&example(Test::AtomicLat), Unit::default(), &row, false);
        assert_eq!(value["test_info"]["test"], "Atomic_FETCH_AND_ADD_Latency_Test");
        assert_eq!(
            (&value["results"]["percentile_99.9"], &value["results"]["CPU_util"]),
            (&json!(3.0), &Value::Null)
        );
    }
}
