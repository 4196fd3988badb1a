//! The structures of libibverbs and librdmacm that are shared with them, as their stable interface (IBVERBS_1.1, RDMACM_1.0)
//! has them on 64-bit machines.
//!
//! Fields that nobody here reads are left out at the ends of structures that the libraries allocate. The test of the sizes
//! and offsets compares with the headers, where they are installed.

#![allow(unsafe_code)] // types of functions

use std::ffi::{c_int, c_uint, c_void};

/// A table of functions of a device's library, of which five are called. The others keep their places.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ContextOps {
    _before_poll_cq: [*mut c_void; 11],
    pub(super) poll_cq:
        Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int>,
    _before_post_shared: [*mut c_void; 7],
    pub(super) post_shared: Option<
        unsafe extern "C" fn(*mut SharedQueue, *mut RecvRequest, *mut *mut RecvRequest) -> c_int,
    >,
    _before_post_send: [*mut c_void; 4],
    pub(super) post_send: Option<
        unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int,
    >,
    pub(super) post_recv: Option<
        unsafe extern "C" fn(*mut QueuePair, *mut RecvRequest, *mut *mut RecvRequest) -> c_int,
    >,
    _after_post_recv: [*mut c_void; 5],
}

/// `struct ibv_context`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct VerbsContext {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    /// Interrupts that can tell of completions.
    pub(super) num_comp_vectors: c_int,
}

/// `struct ibv_device`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Device {
    _ops: [*mut c_void; 2],
    pub(super) node_type: c_int,
    /// 0 InfiniBand and RoCE, 1 iWARP.
    pub(super) transport_type: c_int,
    pub(super) name: [u8; 64],
}

/// `struct ibv_device_attr`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct DeviceAttributes {
    _names: [u8; 64],
    _numbers: [u64; 4],
    pub(super) vendor_id: u32,
    _part_and_version: [u32; 2],
    _max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    _max_sge: [c_int; 3],
    pub(super) max_cqe: c_int,
    _max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    _max_ee_rd_atom: [c_int; 2],
    pub(super) max_qp_init_rd_atom: c_int,
    _before_srq: [c_int; 13],
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    _max_srq_sge: c_int,
    _tail: [u16; 2],
}

/// `struct ibv_mr`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct MemoryRegion {
    _context: *mut VerbsContext,
    _pd: *mut c_void,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_comp_channel`: its beginning.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CompletionChannel {
    _context: *mut VerbsContext,
    pub(super) fd: c_int,
}

/// `struct ibv_cq`: its beginning.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CompletionQueue {
    pub(super) context: *mut VerbsContext,
}

/// `struct ibv_srq`: nothing of it is read.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SharedQueue {
    _opaque: [u8; 0],
}

/// `struct ibv_srq_init_attr`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SharedAttributes {
    pub(super) context: *mut c_void,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// `struct ibv_qp`: its beginning.
#[derive(Debug)]
#[repr(C)]
pub(super) struct QueuePair {
    pub(super) context: *mut VerbsContext,
    _pointers: [*mut c_void; 5],
    _handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkCompletion {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) invalidated_rkey: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: u32,
    _pkey_index: u16,
    _slid: u16,
    _sl: u8,
    _dlid_path_bits: u8,
}

/// A key was invalidated.
pub(super) const WC_WITH_INV: u32 = 1 << 3;

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SendRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendRequest,
    pub(super) sg_list: *mut Element,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    pub(super) invalidate_rkey: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    _rkey_padding: u32,
    _atomic: [u64; 2],
    _xrc: u64,
    _bind: [u64; 6],
}

impl SendRequest {
    pub(super) fn new() -> Self {
        Self {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 1,
            opcode: 0,
            send_flags: 0,
            invalidate_rkey: 0,
            remote_addr: 0,
            rkey: 0,
            _rkey_padding: 0,
            _atomic: [0; 2],
            _xrc: 0,
            _bind: [0; 6],
        }
    }
}

pub(super) const WR_RDMA_WRITE: c_int = 0;
pub(super) const WR_SEND: c_int = 2;
pub(super) const WR_RDMA_READ: c_int = 4;
pub(super) const WR_SEND_WITH_INV: c_int = 9;
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const SEND_INLINE: c_uint = 1 << 3;

/// `struct ibv_recv_wr`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RecvRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvRequest,
    pub(super) sg_list: *mut Element,
    pub(super) num_sge: c_int,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairCapabilities {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct PairAttributes {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut CompletionQueue,
    pub(super) recv_cq: *mut CompletionQueue,
    pub(super) srq: *mut SharedQueue,
    pub(super) cap: PairCapabilities,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

/// A reliable connection.
pub(super) const QPT_RC: c_int = 2;

pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 2;
pub(super) const ACCESS_REMOTE_READ: c_int = 4;
/// The device invalidates keys that come with a SEND.
pub(super) const DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;
/// `transport_type` of iWARP.
pub(super) const TRANSPORT_IWARP: c_int = 1;

/// `struct ibv_async_event`.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct AsyncEvent {
    /// The address of the queue; of a port, its number is in the first four bytes.
    pub(super) element: usize,
    pub(super) kind: c_uint,
}

/// `struct ibv_qp_attr`, of which one field is set.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct PairAttributesToChange {
    _before: [u64; 16],
    pub(super) min_rnr_timer: u8,
    _after: [u8; 15],
}

impl PairAttributesToChange {
    pub(super) fn of_timer(min_rnr_timer: u8) -> Self {
        Self { min_rnr_timer, ..Self::default() }
    }
}

/// `IBV_QP_MIN_RNR_TIMER`.
pub(super) const CHANGE_MIN_RNR_TIMER: c_int = 1 << 15;

/// `struct rdma_event_channel`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct EventChannel {
    pub(super) fd: c_int,
}

/// `struct rdma_cm_id`: its beginning.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CmId {
    pub(super) verbs: *mut VerbsContext,
    _channel: *mut EventChannel,
    _context: *mut c_void,
    pub(super) qp: *mut QueuePair,
    _source: libc::sockaddr_storage,
    /// The peer's address.
    pub(super) destination: libc::sockaddr_storage,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionParameters {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

/// `struct rdma_cm_event`: up to the parameters of connections.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CmEvent {
    pub(super) id: *mut CmId,
    pub(super) listen_id: *mut CmId,
    pub(super) event: c_uint,
    pub(super) status: c_int,
    pub(super) parameters: ConnectionParameters,
}

/// `RDMA_PS_TCP`.
pub(super) const PORT_SPACE_TCP: c_int = 0x0106;

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};
    use std::process::Command;

    use super::super::alarms::kind;
    use super::*;

    /// Each is a C expression with the value that it must have.
    fn expectations() -> Vec<(&'static str, usize)> {
        vec![
            ("offsetof(struct ibv_context, device)", offset_of!(VerbsContext, device)),
            ("offsetof(struct ibv_context, ops.poll_cq)", offset_of!(VerbsContext, ops.poll_cq)),
            (
                "offsetof(struct ibv_context, ops.req_notify_cq)",
                offset_of!(VerbsContext, ops.req_notify_cq),
            ),
            ("offsetof(struct ibv_comp_channel, fd)", offset_of!(CompletionChannel, fd)),
            (
                "offsetof(struct ibv_context, ops.post_send)",
                offset_of!(VerbsContext, ops.post_send),
            ),
            (
                "offsetof(struct ibv_context, ops.post_recv)",
                offset_of!(VerbsContext, ops.post_recv),
            ),
            ("offsetof(struct ibv_context, cmd_fd)", offset_of!(VerbsContext, cmd_fd)),
            ("offsetof(struct ibv_context, async_fd)", offset_of!(VerbsContext, async_fd)),
            ("offsetof(struct ibv_device, node_type)", offset_of!(Device, node_type)),
            ("offsetof(struct ibv_device, transport_type)", offset_of!(Device, transport_type)),
            ("offsetof(struct ibv_device, name)", offset_of!(Device, name)),
            ("sizeof(struct ibv_device_attr)", size_of::<DeviceAttributes>()),
            (
                "offsetof(struct ibv_device_attr, max_qp_wr)",
                offset_of!(DeviceAttributes, max_qp_wr),
            ),
            (
                "offsetof(struct ibv_device_attr, device_cap_flags)",
                offset_of!(DeviceAttributes, device_cap_flags),
            ),
            (
                "offsetof(struct ibv_device_attr, vendor_id)",
                offset_of!(DeviceAttributes, vendor_id),
            ),
            ("offsetof(struct ibv_device_attr, max_cqe)", offset_of!(DeviceAttributes, max_cqe)),
            ("offsetof(struct ibv_device_attr, max_pd)", offset_of!(DeviceAttributes, max_pd)),
            (
                "offsetof(struct ibv_device_attr, max_qp_rd_atom)",
                offset_of!(DeviceAttributes, max_qp_rd_atom),
            ),
            (
                "offsetof(struct ibv_device_attr, max_qp_init_rd_atom)",
                offset_of!(DeviceAttributes, max_qp_init_rd_atom),
            ),
            ("offsetof(struct ibv_mr, lkey)", offset_of!(MemoryRegion, lkey)),
            ("offsetof(struct ibv_mr, rkey)", offset_of!(MemoryRegion, rkey)),
            ("offsetof(struct ibv_cq, context)", offset_of!(CompletionQueue, context)),
            ("offsetof(struct ibv_qp, context)", offset_of!(QueuePair, context)),
            ("offsetof(struct ibv_qp, qp_num)", offset_of!(QueuePair, qp_num)),
            ("sizeof(struct ibv_wc)", size_of::<WorkCompletion>()),
            ("offsetof(struct ibv_wc, status)", offset_of!(WorkCompletion, status)),
            ("offsetof(struct ibv_wc, byte_len)", offset_of!(WorkCompletion, byte_len)),
            (
                "offsetof(struct ibv_wc, invalidated_rkey)",
                offset_of!(WorkCompletion, invalidated_rkey),
            ),
            ("offsetof(struct ibv_wc, qp_num)", offset_of!(WorkCompletion, qp_num)),
            ("offsetof(struct ibv_wc, wc_flags)", offset_of!(WorkCompletion, wc_flags)),
            ("sizeof(struct ibv_sge)", size_of::<Element>()),
            ("sizeof(struct ibv_send_wr)", size_of::<SendRequest>()),
            ("offsetof(struct ibv_send_wr, opcode)", offset_of!(SendRequest, opcode)),
            ("offsetof(struct ibv_send_wr, send_flags)", offset_of!(SendRequest, send_flags)),
            (
                "offsetof(struct ibv_send_wr, invalidate_rkey)",
                offset_of!(SendRequest, invalidate_rkey),
            ),
            (
                "offsetof(struct ibv_send_wr, wr.rdma.remote_addr)",
                offset_of!(SendRequest, remote_addr),
            ),
            ("offsetof(struct ibv_send_wr, wr.rdma.rkey)", offset_of!(SendRequest, rkey)),
            ("sizeof(struct ibv_recv_wr)", size_of::<RecvRequest>()),
            ("offsetof(struct ibv_recv_wr, num_sge)", offset_of!(RecvRequest, num_sge)),
            ("sizeof(struct ibv_qp_init_attr)", size_of::<PairAttributes>()),
            ("offsetof(struct ibv_qp_init_attr, cap)", offset_of!(PairAttributes, cap)),
            ("offsetof(struct ibv_qp_init_attr, qp_type)", offset_of!(PairAttributes, qp_type)),
        ]
    }

    /// Those of the connection manager, and the constants.
    /// Of shared receives and of news.
    fn shared_expectations() -> Vec<(&'static str, usize)> {
        vec![
            (
                "offsetof(struct ibv_context, ops.post_srq_recv)",
                offset_of!(VerbsContext, ops.post_shared),
            ),
            (
                "offsetof(struct ibv_context, num_comp_vectors)",
                offset_of!(VerbsContext, num_comp_vectors),
            ),
            ("offsetof(struct ibv_device_attr, max_srq)", offset_of!(DeviceAttributes, max_srq)),
            (
                "offsetof(struct ibv_device_attr, max_srq_wr)",
                offset_of!(DeviceAttributes, max_srq_wr),
            ),
            ("sizeof(struct ibv_srq_init_attr)", size_of::<SharedAttributes>()),
            (
                "offsetof(struct ibv_srq_init_attr, attr.max_wr)",
                offset_of!(SharedAttributes, max_wr),
            ),
            (
                "offsetof(struct ibv_srq_init_attr, attr.max_sge)",
                offset_of!(SharedAttributes, max_sge),
            ),
            ("offsetof(struct ibv_qp_init_attr, srq)", offset_of!(PairAttributes, srq)),
            ("sizeof(struct ibv_async_event)", size_of::<AsyncEvent>()),
            ("offsetof(struct ibv_async_event, event_type)", offset_of!(AsyncEvent, kind)),
            ("sizeof(struct ibv_qp_attr)", size_of::<PairAttributesToChange>()),
            (
                "offsetof(struct ibv_qp_attr, min_rnr_timer)",
                offset_of!(PairAttributesToChange, min_rnr_timer),
            ),
            ("IBV_QP_MIN_RNR_TIMER", usize::try_from(CHANGE_MIN_RNR_TIMER).unwrap()),
            ("IBV_EVENT_CQ_ERR", usize::try_from(kind::CQ_ERR).unwrap()),
            ("IBV_EVENT_QP_FATAL", usize::try_from(kind::QP_FATAL).unwrap()),
            ("IBV_EVENT_QP_REQ_ERR", usize::try_from(kind::QP_REQ_ERR).unwrap()),
            ("IBV_EVENT_QP_ACCESS_ERR", usize::try_from(kind::QP_ACCESS_ERR).unwrap()),
            ("IBV_EVENT_DEVICE_FATAL", usize::try_from(kind::DEVICE_FATAL).unwrap()),
            ("IBV_EVENT_PORT_ACTIVE", usize::try_from(kind::PORT_ACTIVE).unwrap()),
            ("IBV_EVENT_PORT_ERR", usize::try_from(kind::PORT_ERR).unwrap()),
            ("IBV_EVENT_SRQ_ERR", usize::try_from(kind::SRQ_ERR).unwrap()),
            ("IBV_EVENT_QP_LAST_WQE_REACHED", usize::try_from(kind::QP_LAST_WQE_REACHED).unwrap()),
        ]
    }

    fn more_expectations() -> Vec<(&'static str, usize)> {
        vec![
            ("offsetof(struct rdma_cm_id, verbs)", offset_of!(CmId, verbs)),
            ("offsetof(struct rdma_cm_id, qp)", offset_of!(CmId, qp)),
            ("offsetof(struct rdma_cm_id, route.addr.dst_addr)", offset_of!(CmId, destination)),
            ("sizeof(struct rdma_conn_param)", size_of::<ConnectionParameters>()),
            (
                "offsetof(struct rdma_conn_param, rnr_retry_count)",
                offset_of!(ConnectionParameters, rnr_retry_count),
            ),
            ("offsetof(struct rdma_cm_event, status)", offset_of!(CmEvent, status)),
            ("offsetof(struct rdma_cm_event, param.conn)", offset_of!(CmEvent, parameters)),
            ("IBV_WR_RDMA_WRITE", usize::try_from(WR_RDMA_WRITE).unwrap()),
            ("IBV_WR_SEND", usize::try_from(WR_SEND).unwrap()),
            ("IBV_WR_RDMA_READ", usize::try_from(WR_RDMA_READ).unwrap()),
            ("IBV_WR_SEND_WITH_INV", usize::try_from(WR_SEND_WITH_INV).unwrap()),
            ("IBV_SEND_SIGNALED", usize::try_from(SEND_SIGNALED).unwrap()),
            ("IBV_SEND_INLINE", usize::try_from(SEND_INLINE).unwrap()),
            ("IBV_WC_WITH_INV", usize::try_from(WC_WITH_INV).unwrap()),
            ("IBV_QPT_RC", usize::try_from(QPT_RC).unwrap()),
            ("IBV_ACCESS_LOCAL_WRITE", usize::try_from(ACCESS_LOCAL_WRITE).unwrap()),
            ("IBV_ACCESS_REMOTE_WRITE", usize::try_from(ACCESS_REMOTE_WRITE).unwrap()),
            ("IBV_ACCESS_REMOTE_READ", usize::try_from(ACCESS_REMOTE_READ).unwrap()),
            ("IBV_DEVICE_MEM_MGT_EXTENSIONS", usize::try_from(DEVICE_MEM_MGT_EXTENSIONS).unwrap()),
            ("IBV_TRANSPORT_IWARP", usize::try_from(TRANSPORT_IWARP).unwrap()),
            ("RDMA_PS_TCP", usize::try_from(PORT_SPACE_TCP).unwrap()),
        ]
    }

    /// The offsets that the headers of rdma-core 44 give, so that the test says something without the headers, too.
    #[test]
    fn offsets_are_those_of_the_stable_interface() {
        assert_eq!(offset_of!(VerbsContext, ops.poll_cq), 8 + 11 * 8);
        assert_eq!(offset_of!(VerbsContext, ops.req_notify_cq), 8 + 12 * 8);
        assert_eq!(offset_of!(VerbsContext, ops.post_shared), 8 + 20 * 8);
        assert_eq!(offset_of!(VerbsContext, ops.post_send), 8 + 25 * 8);
        assert_eq!(offset_of!(CompletionChannel, fd), 8);
        assert_eq!(offset_of!(VerbsContext, cmd_fd), 8 + 32 * 8);
        assert_eq!(offset_of!(VerbsContext, num_comp_vectors), 8 + 32 * 8 + 8);
        assert_eq!(size_of::<DeviceAttributes>(), 232);
        assert_eq!(offset_of!(CmId, destination), 4 * 8 + 128);
        assert_eq!(size_of::<WorkCompletion>(), 48);
        assert_eq!(size_of::<SendRequest>(), 128);
        assert_eq!(size_of::<PairAttributes>(), 64);
        assert_eq!(offset_of!(QueuePair, qp_num), 52);
        assert_eq!(size_of::<ConnectionParameters>(), 24);
        assert_eq!((size_of::<AsyncEvent>(), offset_of!(AsyncEvent, kind)), (16, 8));
        assert_eq!(size_of::<PairAttributesToChange>(), 144);
        assert_eq!(offset_of!(PairAttributesToChange, min_rnr_timer), 128);
    }

    #[test]
    fn layouts_are_those_of_the_headers() {
        let mut text = "#include <stddef.h>\n#include <rdma/rdma_cma.h>\n".to_owned();
        for (expression, expected) in
            expectations().into_iter().chain(more_expectations()).chain(shared_expectations())
        {
            text += &format!("_Static_assert({expression} == {expected}, \"{expression}\");\n");
        }
        let folder = std::env::temp_dir().join(format!("raceline-layout-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = folder.join("layout.c");
        let compile = |text: &str| {
            std::fs::write(&source, text).unwrap();
            Command::new("cc").arg("-fsyntax-only").arg(&source).output()
        };
        let headers = compile("#include <rdma/rdma_cma.h>\n");
        let compared = compile(&text);
        std::fs::remove_dir_all(&folder).unwrap();
        match headers {
            Ok(output) if output.status.success() => {}
            _ => {
                return println!(
                    "SKIPPED: not compared: no C compiler, or no package librdmacm-dev"
                );
            }
        }
        let output = compared.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
