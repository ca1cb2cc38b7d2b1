//! The stack of the programs, as Linux 6.1 counts it: each function of a chain of calls takes a multiple of 32 bytes (later kernels: of
//! 16 or less), and a chain takes 512 bytes at most. The kernel that runs the tests may be a later one. A function that calls
//! `bpf_loop` counts 24 bytes too many: the kernel has replaced the call by a loop.

use libbpf_rs::{
    MapCore, MapHandle,
    query::{ProgInfoIter, ProgInfoQueryOptions, ProgramInfo},
};

use longsplice_dataplane::rules::{Mark, Rules};

use crate::support::{net::Net, plane::Plane};

/// Most bytes of a chain of calls (`MAX_BPF_STACK`).
const MOST: usize = 512;

/// Bytes of which a function takes a multiple.
const STEP: usize = 32;

// linux/bpf.h
const LOAD_64: u8 = 0x18;
const CALL: u8 = 0x85;
const MOVE_64: u8 = 0xbf;
const ADD_64: u8 = 0x07;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_FUNCTION: u8 = 4;
const FRAME_POINTER: u8 = 10;

/// Function of a program: the bytes of its stack, and the numbers of those that it calls.
struct Function {
    stack: usize,
    calls: Vec<usize>,
}

/// Returns the functions of a program.
fn functions(program: &ProgramInfo) -> Vec<Function> {
    let code: Vec<&[u8; 8]> = program.xlated_prog_insns.as_chunks().0.iter().collect();
    assert!(!code.is_empty(), "the kernel shows no instructions");
    let mut starts: Vec<usize> = program.func_info.iter().map(|f| f.insn_off as usize).collect();
    starts.push(code.len());
    starts
        .windows(2)
        .map(|range| function(&code[range[0]..range[1]]))
        .collect()
}

fn function(code: &[&[u8; 8]]) -> Function {
    let number = |instruction: &[u8; 8]| {
        i32::from_le_bytes([instruction[4], instruction[5], instruction[6], instruction[7]])
    };
    let mut found = Function {
        stack: 0,
        calls: Vec::new(),
    };
    for (at, instruction) in code.iter().enumerate() {
        let (operation, target, source) = (instruction[0], instruction[1] & 0xf, instruction[1] >> 4);
        let offset = i16::from_le_bytes([instruction[2], instruction[3]]);
        let next = code.get(at + 1);
        // Loads address by their source, stores by their target.
        let base = match operation & 7 {
            1 => source,
            2 | 3 => target,
            _ => 0,
        };
        let below = match (operation, source) {
            (CALL, PSEUDO_CALL) => {
                found.calls.push(number(instruction) as usize);
                0
            }
            // The second half has the number of a function that a helper calls.
            (LOAD_64, PSEUDO_FUNCTION) => {
                found.calls.extend(next.map(|half| number(half) as usize));
                0
            }
            (MOVE_64, FRAME_POINTER) => match next.filter(|n| n[0] == ADD_64 && n[1] & 0xf == target) {
                Some(added) => number(added),
                None => 0,
            },
            _ if base == FRAME_POINTER => offset.into(),
            _ => 0,
        };
        found.stack = found.stack.max(usize::try_from(-below).unwrap_or(0));
    }
    found
}

/// Returns the chain of calls from a function that takes most of the stack: its bytes, and its functions.
fn deepest(all: &[Function], from: usize) -> (usize, Vec<(usize, usize)>) {
    let Function { stack, calls } = &all[from];
    let chains = calls.iter().map(|&next| deepest(all, next));
    let (below, mut chain) = chains.max_by_key(|(bytes, _)| *bytes).unwrap_or_default();
    chain.insert(0, (from, *stack));
    (below + stack.max(&1).next_multiple_of(STEP), chain)
}

#[test]
fn every_chain_of_calls_fits_the_stack_of_the_oldest_kernel() {
    let _net = Net::new();
    let plane = Plane::open();
    let _rules = Rules::load(&plane, Mark { value: 0, mask: 0 }).expect("the verifier takes it");
    // The program of rules has no table of flows.
    let shared = ["flows", "verdicts"].map(|name| {
        let path = format!("/sys/fs/bpf/longsplice-{}/{name}", plane.instance);
        MapHandle::from_pinned_path(path).unwrap().info().unwrap().info.id
    });
    let options = ProgInfoQueryOptions::default()
        .include_xlated_prog_insns(true)
        .include_func_info(true)
        .include_map_ids(true);
    let ours: Vec<ProgramInfo> = ProgInfoIter::with_query_opts(options)
        .filter(|program| shared.iter().any(|map| program.map_ids.contains(map)))
        .collect();
    for name in ["ingress", "rules"] {
        assert!(ours.iter().any(|program| program.name == name));
    }
    for program in &ours {
        let (bytes, chain) = deepest(&functions(program), 0);
        println!("{:?}: {bytes} bytes: {chain:?}", program.name);
        assert!(
            bytes <= MOST,
            "{:?}: {bytes} bytes of stack: {chain:?}",
            program.name
        );
    }
}
