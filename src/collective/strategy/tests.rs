use super::tuning::{Case, Step, Table};
use super::*;
use crate::collective::call::{Input, Output};
use crate::collective::rendezvous::buffers::BufferPlace;
use crate::collective::rendezvous::post::{LargePost, Post};
use crate::heap::HeapOffset;
use crate::reduce::{DataType, ReduceOp};
use crate::sync::PostCell;

const N: usize = 2;

fn heap(offset: u64) -> BufferPlace {
    BufferPlace::heap(HeapOffset::new(offset))
}

fn apart() -> Buffers {
    Buffers { input: heap(0), output: heap(4096) }
}

fn in_place() -> Buffers {
    Buffers { input: heap(4096), output: heap(4096) }
}

fn ordinary() -> Buffers {
    Buffers { input: BufferPlace::elsewhere(0), output: BufferPlace::elsewhere(0) }
}

/// Makes an all-reduce of `len` bytes of the heap, out of place.
fn call(len: u64, data_type: DataType) -> Call<'static> {
    let reducer = Some(Reducer::new(data_type, &ReduceOp::Sum, 2).unwrap());
    let (input, output) = (Input::Heap(HeapOffset::new(0)), Output::Heap(HeapOffset::new(1 << 20)));
    let count = len / data_type.size() as u64;
    let (operation, root, tag, receipt, layout) = (Operation::AllReduce, 0, 0, None, None);
    Call { operation, data_type, count, root, tag, receipt, reducer, layout, input, output }
}

fn propose(selector: &mut Selector, len: u64, choice: Choice) -> Proposal {
    let call = call(len, DataType::F32);
    selector.propose(&call, choice).unwrap()
}

/// Names the strategy of two members with these buffers.
fn settle(selector: &mut Selector, proposal: &Proposal, call: &Call<'_>, buffers: [Buffers; N]) -> String {
    let cells = buffers.map(|buffers| {
        let cell = PostCell::default();
        let post = LargePost { buffers, balance: 0, scalar: 0, last_duration: 1000 };
        let (head, data) = post.to_words();
        cell.post(1, [0, 0, head[0], head[1]], &data);
        cell
    });
    let posts = |member: usize| Post(&cells[member]);
    let strategy = selector.settle(proposal, call, 0, posts).unwrap();
    match strategy.execution {
        Execution::Eager => "eager".into(),
        Execution::ZeroCopy => "zero-copy".into(),
        Execution::ByPlan { index, .. } => format!("plan {index}"),
        Execution::Staged { prestaged, .. } => format!("staged {prestaged:?}"),
        Execution::OverPipes { algorithm, kind, chunked } => {
            let built_in = match algorithm {
                PipeAlgorithm::BuiltIn(algorithm) => Some(algorithm),
                PipeAlgorithm::Custom(_) => None,
            };
            format!("{built_in:?} {kind} {chunked:?}")
        }
    }
}

fn by(algorithm: Algorithm, channel: ChannelKind) -> Choice {
    Choice { algorithm: Some(algorithm), channel }
}

#[test]
fn what_is_proposed_follows_from_the_choice_and_the_length() {
    let mut selector = Selector::new(Tuning::default(), N);
    let any = Choice::default();
    let port = Choice { algorithm: None, channel: ChannelKind::Port };
    for (choice, len, way) in [
        (any, 8, Way::Eager),
        (any, 4 << 10, Way::Eager),
        (any, 8 << 10, Way::Eager),
        (any, 64 << 10, Way::ByTable(PlansByTable::default())),
        (by(Algorithm::OneShot, ChannelKind::Memory), 8 << 10, Way::Eager),
        (
            by(Algorithm::OneShot, ChannelKind::Memory),
            64 << 10,
            Way::OverPipes(Algorithm::OneShot, ChannelKind::Memory),
        ),
        (by(Algorithm::TwoShot, ChannelKind::Memory), 8, Way::TwoShot),
        (by(Algorithm::Ring, ChannelKind::Port), 8, Way::OverPipes(Algorithm::Ring, ChannelKind::Port)),
        (port, 8, Way::OverPipes(Algorithm::OneShot, ChannelKind::Port)),
        (port, 64 << 10, Way::OverPipes(Algorithm::TwoShot, ChannelKind::Port)),
    ] {
        assert_eq!(propose(&mut selector, len, choice).way, way, "{choice} {len}");
        let mut alone = Selector::new(Tuning::default(), 1);
        let simple = if len <= 8 << 10 { Way::Eager } else { Way::ByTable(PlansByTable::default()) };
        assert_eq!(propose(&mut alone, len, choice).way, simple, "{choice} {len} alone");
    }
}

#[test]
fn many_ranks_with_a_core_each_go_by_two_shots_from_one_kib_on_and_others_from_eight() {
    for (n_members, oversubscribed, last) in
        [(4, false, 8 << 10), (8, false, 1 << 10), (16, false, 1 << 10), (8, true, 8 << 10)]
    {
        let mut selector = Selector::new(Tuning { table: Table::default(), oversubscribed }, n_members);
        let ways = [last, last + 4].map(|len| propose(&mut selector, len, Choice::default()).way);
        assert_eq!(ways, [Way::Eager, Way::ByTable(PlansByTable::default())], "{n_members} {oversubscribed}");
        let mut chosen = |len| propose(&mut selector, len, by(Algorithm::OneShot, ChannelKind::Memory)).way;
        assert_eq!([last, 8 << 10].map(&mut chosen), [Way::Eager; 2], "{n_members} {oversubscribed}");
    }
}

#[test]
fn what_is_settled_follows_from_where_all_buffers_lie() {
    let mut selector = Selector::new(Tuning::default(), N);
    let (large, two_shot) = (call(1 << 20, DataType::F32), by(Algorithm::TwoShot, ChannelKind::Memory));
    for choice in [Choice::default(), two_shot] {
        for (buffers, strategy) in [
            ([apart(); 2], "zero-copy"),
            ([in_place(); 2], "zero-copy"),
            ([in_place(), apart()], "zero-copy"),
            ([ordinary(); 2], "staged All"),
            ([apart(), ordinary()], "staged NotMe"),
            ([ordinary(), apart()], "staged MeToo"),
        ] {
            let proposal = propose(&mut selector, 1 << 20, choice);
            assert_eq!(settle(&mut selector, &proposal, &large, buffers), strategy, "{choice} {buffers:?}");
        }
    }
    let ring = propose(&mut selector, 1 << 20, by(Algorithm::Ring, ChannelKind::Memory));
    let short = call(1 << 20, DataType::F16);
    assert_eq!(settle(&mut selector, &ring, &large, [apart(); 2]), "Some(Ring) memory None");
    assert_eq!(settle(&mut selector, &ring, &large, [apart(), ordinary()]), "Some(Ring) memory Some(Own)");
    assert_eq!(settle(&mut selector, &ring, &short, [apart(); 2]), "Some(Ring) memory Some(Widened)");
}

fn prestages(way: Way, foreseen: Option<Route>, by_table: [Algorithm; 2]) -> [bool; 3] {
    let case = |(buffers, algorithm): (BufferKind, Algorithm)| Case {
        operation: Operation::AllReduce,
        n_ranks: 2,
        oversubscribed: false,
        buffers,
        steps: vec![Step { up_to: None, algorithm: algorithm.into() }],
    };
    let cases: Vec<_> = BufferKind::ALL.into_iter().zip(by_table).map(case).collect();
    let tuning = Tuning { table: Table::new(&cases).unwrap(), oversubscribed: false };
    let (selector, call) = (Selector::new(tuning, N), call(1 << 20, DataType::F32));
    let proposal = Proposal { foreseen, ..Proposal::new(way, 1 << 20, call.signature()) };
    [apart(), in_place(), ordinary()].map(|buffers| selector.is_prestaged(&proposal, &call, buffers))
}

#[test]
fn who_will_need_its_staging_area_for_certain_stages_before_it_posts_and_nobody_else() {
    let (first, second, usual) = (Some(Route::First), Some(Route::Second), [Algorithm::TwoShot; 2]);
    let by_table_way = Way::ByTable(PlansByTable::default());
    for way in [Way::TwoShot, by_table_way] {
        assert_eq!(prestages(way, None, usual), [false, false, true]);
        assert_eq!(prestages(way, first, usual), [false, false, true]);
        assert_eq!(prestages(way, second, usual), [true, false, true]);
    }
    let [in_heap, elsewhere] = [[Algorithm::TwoShot, Algorithm::Ring], [Algorithm::Ring, Algorithm::TwoShot]];
    assert_eq!(prestages(by_table_way, second, elsewhere), [false, false, true]);
    assert_eq!(prestages(by_table_way, second, in_heap), [true, false, false]);
    assert_eq!(prestages(Way::TwoShot, second, [Algorithm::Ring; 2]), [true, false, true]);
    for way in
        [Way::Eager, Way::Custom(ChannelKind::Memory), Way::OverPipes(Algorithm::Ring, ChannelKind::Port)]
    {
        assert_eq!(prestages(way, second, usual), [false; 3]);
    }
}
