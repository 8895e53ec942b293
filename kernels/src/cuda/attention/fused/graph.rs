//! The graph of operations that cuDNN recognises as attention, and its execution.

use std::ffi::c_void;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t as Attribute;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t as Type;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t as Kind;
use cudarc::cudnn::sys::cudnnPointwiseMode_t as Pointwise;
use cudarc::cudnn::sys::{self, cudnnBackendDescriptor_t as Descriptor, cudnnDataType_t as Element};

use super::super::super::device::device_error;
use super::super::super::device::layout::Strides;
use super::shape::Shape;
use crate::KernelError;

/// Names of the tensors that an execution gives: queries, keys, values, output, log-sum-exp, scale, what masks, the shift.
const IDS: [i64; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

pub fn check(status: sys::cudnnStatus_t, what: &str) -> Result<(), KernelError> {
    match status {
        sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS => Ok(()),
        status => Err(device_error("cudnn", format!("{what}: {status:?}"))),
    }
}

/// A description under construction, destroyed with the graph.
pub struct Graph {
    all: Vec<Descriptor>,
    operations: Vec<Descriptor>,
    next: i64,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: each was created by this graph and is named by no one after it.
        self.all.iter().rev().for_each(|descriptor| unsafe {
            sys::cudnnBackendDestroyDescriptor(*descriptor);
        });
    }
}

fn create(kind: Kind) -> Result<Descriptor, KernelError> {
    let mut descriptor = std::ptr::null_mut();
    // SAFETY: the library is loaded and writes one pointer.
    check(unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut descriptor) }, "create")?;
    Ok(descriptor)
}

fn set<T>(descriptor: Descriptor, name: Attribute, kind: Type, values: &[T]) -> Result<(), KernelError> {
    let pointer = values.as_ptr().cast::<c_void>();
    // SAFETY: callers pass values of the type that `kind` names.
    let status = unsafe { sys::cudnnBackendSetAttribute(descriptor, name, kind, values.len() as i64, pointer) };
    check(status, &format!("{name:?}"))
}

fn finalize(descriptor: Descriptor, what: &str) -> Result<Descriptor, KernelError> {
    // SAFETY: the descriptor is live.
    check(unsafe { sys::cudnnBackendFinalize(descriptor) }, what)?;
    Ok(descriptor)
}

impl Graph {
    /// softmax(q k^T scale, masked) v, with row maximum plus logarithm of the sum as statistics.
    pub fn new(shape: Shape) -> Result<Self, KernelError> {
        let mut graph = Self { all: Vec::new(), operations: Vec::new(), next: 100 };
        let Shape { heads: [query, kv], rows, keys, dim, .. } = shape;
        let [query, kv, rows, keys, dim] = [query, kv, rows, keys, dim].map(|x| x as i64);
        let (bf16, f32) = (Element::CUDNN_DATA_BFLOAT16, Element::CUDNN_DATA_FLOAT);
        let at = |of: Strides, heads: i64| [of.head * heads, of.head, of.row, 1];
        let [q_at, kv_at, out_at] = [at(shape.q, query), at(shape.kv, kv), at(shape.out, query)];
        let q = graph.given(IDS[0], [1, query, rows, dim], q_at, bf16)?;
        let k = match shape.causal {
            true => graph.given(IDS[1], [1, kv, dim, keys], [kv_at[0], kv_at[1], 1, kv_at[2]], bf16)?,
            false => graph.given(IDS[1], [1, kv, keys, dim], kv_at, bf16)?,
        };
        let v = graph.given(IDS[2], [1, kv, keys, dim], kv_at, bf16)?;
        let out = graph.given(IDS[3], [1, query, rows, dim], out_at, bf16)?;
        let lse_head = shape.lse_head as i64;
        let lse = graph.given(IDS[4], [1, query, rows, 1], [query * lse_head, lse_head, 1, 1], f32)?;
        let scale = graph.tensor(IDS[5], [1; 4], [1; 4], f32, [false, true])?;
        if !shape.causal {
            graph.one_operation([q, k, v, out, scale, lse])?;
            return Ok(graph);
        }
        let (full, row) = ([1, query, rows, keys], [1, query, rows, 1]);
        let scores = graph.inner(full, f32)?;
        graph.product(q, k, scores)?;
        let scaled = graph.inner(full, f32)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_MUL, f32, None, &[scores, scale], scaled)?;
        let masked = graph.mask(full, scaled, keys != rows)?;
        let (most, less, weight) = (graph.inner(row, f32)?, graph.inner(full, f32)?, graph.inner(full, f32)?);
        let (sum, log, share) = (graph.inner(row, f32)?, graph.inner(row, f32)?, graph.inner(full, bf16)?);
        graph.reduce(sys::cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_MAX, masked, most)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_SUB, f32, None, &[masked, most], less)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_EXP, f32, None, &[less], weight)?;
        graph.reduce(sys::cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_ADD, weight, sum)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_LOG, f32, None, &[sum], log)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_ADD, f32, None, &[most, log], lse)?;
        graph.pointwise(Pointwise::CUDNN_POINTWISE_DIV, f32, None, &[weight, sum], share)?;
        graph.product(share, v, out)?;
        Ok(graph)
    }

    /// Scores of keys that come after the row, counted from the last row and key, become the least there is.
    fn mask(&mut self, full: [i64; 4], scaled: Descriptor, shifted: bool) -> Result<Descriptor, KernelError> {
        let int = Element::CUDNN_DATA_INT32;
        let least = self.tensor(IDS[6], [1; 4], [1; 4], Element::CUDNN_DATA_FLOAT, [false, true])?;
        let (mut row, column) = (self.inner(full, int)?, self.inner(full, int)?);
        self.pointwise(Pointwise::CUDNN_POINTWISE_GEN_INDEX, int, Some(2), &[scaled], row)?;
        if shifted {
            let shift = self.tensor(IDS[7], [1; 4], [1; 4], int, [false, true])?;
            let moved = self.inner(full, int)?;
            self.pointwise(Pointwise::CUDNN_POINTWISE_ADD, int, None, &[row, shift], moved)?;
            row = moved;
        }
        self.pointwise(Pointwise::CUDNN_POINTWISE_GEN_INDEX, int, Some(3), &[scaled], column)?;
        let (sees, masked) =
            (self.inner(full, Element::CUDNN_DATA_BOOLEAN)?, self.inner(full, Element::CUDNN_DATA_FLOAT)?);
        let boolean = Element::CUDNN_DATA_BOOLEAN;
        self.pointwise(Pointwise::CUDNN_POINTWISE_CMP_GE, boolean, None, &[row, column], sees)?;
        let f32 = Element::CUDNN_DATA_FLOAT;
        self.pointwise(Pointwise::CUDNN_POINTWISE_BINARY_SELECT, f32, None, &[scaled, least, sees], masked)?;
        Ok(masked)
    }

    fn descriptor(&mut self, kind: Kind) -> Result<Descriptor, KernelError> {
        let descriptor = create(kind)?;
        self.all.push(descriptor);
        Ok(descriptor)
    }

    fn tensor(
        &mut self,
        id: i64,
        sizes: [i64; 4],
        strides: [i64; 4],
        element: Element,
        [inner, by_value]: [bool; 2],
    ) -> Result<Descriptor, KernelError> {
        let tensor = self.descriptor(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        set(tensor, Attribute::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[element])?;
        set(tensor, Attribute::CUDNN_ATTR_TENSOR_DIMENSIONS, Type::CUDNN_TYPE_INT64, &sizes)?;
        set(tensor, Attribute::CUDNN_ATTR_TENSOR_STRIDES, Type::CUDNN_TYPE_INT64, &strides)?;
        set(tensor, Attribute::CUDNN_ATTR_TENSOR_UNIQUE_ID, Type::CUDNN_TYPE_INT64, &[id])?;
        set(tensor, Attribute::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Type::CUDNN_TYPE_INT64, &[16i64])?;
        set(tensor, Attribute::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Type::CUDNN_TYPE_BOOLEAN, &[inner])?;
        set(tensor, Attribute::CUDNN_ATTR_TENSOR_IS_BY_VALUE, Type::CUDNN_TYPE_BOOLEAN, &[by_value])?;
        finalize(tensor, "tensor")
    }

    fn given(
        &mut self,
        id: i64,
        sizes: [i64; 4],
        strides: [i64; 4],
        element: Element,
    ) -> Result<Descriptor, KernelError> {
        self.tensor(id, sizes, strides, element, [false, false])
    }

    /// A tensor that is never stored.
    fn inner(&mut self, sizes: [i64; 4], element: Element) -> Result<Descriptor, KernelError> {
        self.next += 1;
        let strides = [sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1];
        self.tensor(self.next, sizes, strides, element, [true, false])
    }

    fn operation(&mut self, kind: Kind, operands: &[(Attribute, Descriptor)], what: &str) -> Result<(), KernelError> {
        let operation = self.descriptor(kind)?;
        for (name, operand) in operands {
            set(operation, *name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[*operand])?;
        }
        self.operations.push(finalize(operation, what)?);
        Ok(())
    }

    /// The whole of attention without a mask as one operation of cuDNN's.
    fn one_operation(&mut self, [q, k, v, out, scale, lse]: [Descriptor; 6]) -> Result<(), KernelError> {
        let operands = [
            (Attribute::CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, q),
            (Attribute::CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, k),
            (Attribute::CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, v),
            (Attribute::CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, out),
            (Attribute::CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, scale),
            (Attribute::CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, lse),
        ];
        self.operation(Kind::CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, &operands, "attention")
    }

    fn product(&mut self, a: Descriptor, b: Descriptor, c: Descriptor) -> Result<(), KernelError> {
        let product = self.descriptor(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
        let f32 = [Element::CUDNN_DATA_FLOAT];
        set(product, Attribute::CUDNN_ATTR_MATMUL_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &f32)?;
        let operands = [
            (Attribute::CUDNN_ATTR_OPERATION_MATMUL_ADESC, a),
            (Attribute::CUDNN_ATTR_OPERATION_MATMUL_BDESC, b),
            (Attribute::CUDNN_ATTR_OPERATION_MATMUL_CDESC, c),
            (Attribute::CUDNN_ATTR_OPERATION_MATMUL_DESC, finalize(product, "product")?),
        ];
        self.operation(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &operands, "product")
    }

    fn pointwise(
        &mut self,
        mode: Pointwise,
        precision: Element,
        axis: Option<i64>,
        operands: &[Descriptor],
        result: Descriptor,
    ) -> Result<(), KernelError> {
        let pointwise = self.descriptor(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        set(pointwise, Attribute::CUDNN_ATTR_POINTWISE_MODE, Type::CUDNN_TYPE_POINTWISE_MODE, &[mode])?;
        set(pointwise, Attribute::CUDNN_ATTR_POINTWISE_MATH_PREC, Type::CUDNN_TYPE_DATA_TYPE, &[precision])?;
        if let Some(axis) = axis {
            set(pointwise, Attribute::CUDNN_ATTR_POINTWISE_AXIS, Type::CUDNN_TYPE_INT64, &[axis])?;
        }
        let names = [
            Attribute::CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            Attribute::CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            Attribute::CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        let descriptor = finalize(pointwise, "pointwise")?;
        let mut all = vec![(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, descriptor)];
        all.extend(names.into_iter().zip(operands.iter().copied()));
        all.push((Attribute::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, result));
        self.operation(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &all, "pointwise")
    }

    fn reduce(&mut self, by: sys::cudnnReduceTensorOp_t, from: Descriptor, to: Descriptor) -> Result<(), KernelError> {
        let reduction = self.descriptor(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?;
        let operator = Attribute::CUDNN_ATTR_REDUCTION_OPERATOR;
        set(reduction, operator, Type::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &[by])?;
        let f32 = [Element::CUDNN_DATA_FLOAT];
        set(reduction, Attribute::CUDNN_ATTR_REDUCTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &f32)?;
        let operands = [
            (Attribute::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, from),
            (Attribute::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to),
            (Attribute::CUDNN_ATTR_OPERATION_REDUCTION_DESC, finalize(reduction, "reduction")?),
        ];
        self.operation(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, &operands, "reduction")
    }

    /// The first plan of the library's choice that can be built, the bytes it works in, and what it was built from.
    pub fn plan(&self, handle: sys::cudnnHandle_t) -> Result<(Descriptor, usize, Self), KernelError> {
        let mut made = Graph { all: Vec::new(), operations: Vec::new(), next: 0 };
        let graph = made.descriptor(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        set(graph, Attribute::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle])?;
        let descriptors = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
        set(graph, Attribute::CUDNN_ATTR_OPERATIONGRAPH_OPS, descriptors, &self.operations)?;
        finalize(graph, "graph")?;
        let heuristics = made.descriptor(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        set(heuristics, Attribute::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, descriptors, &[graph])?;
        let mode = [sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A];
        set(heuristics, Attribute::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &mode)?;
        finalize(heuristics, "heuristics")?;
        let mut engines = Vec::new();
        for _ in 0..8 {
            engines.push(made.descriptor(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)?);
        }
        let mut count = 0;
        // SAFETY: eight descriptors of the kind wanted are given.
        let status = unsafe {
            let (name, to) = (Attribute::CUDNN_ATTR_ENGINEHEUR_RESULTS, engines.as_mut_ptr().cast());
            sys::cudnnBackendGetAttribute(heuristics, name, descriptors, 8, &mut count, to)
        };
        check(status, "engines")?;
        for engine in &engines[..count.clamp(0, 8) as usize] {
            let plan = create(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
            set(plan, Attribute::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle])?;
            set(plan, Attribute::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, descriptors, &[*engine])?;
            let (mut bytes, mut written) = (0i64, 0i64);
            let name = Attribute::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE;
            // SAFETY: the plan is live; its workspace size is one 8-byte number. A plan that cannot be built is not used again.
            let built = finalize(plan, "plan").is_ok()
                && unsafe {
                    let to = (&raw mut bytes).cast();
                    sys::cudnnBackendGetAttribute(plan, name, Type::CUDNN_TYPE_INT64, 1, &mut written, to)
                } == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS;
            if built {
                return Ok((plan, bytes.max(0) as usize, made));
            }
            // SAFETY: as above.
            unsafe { sys::cudnnBackendDestroyDescriptor(plan) };
        }
        Err(device_error("cudnn", format!("none of {count} engines takes this attention")))
    }

    /// Queues a plan on `pointers`: queries, keys, values, output, log-sum-exp, workspace.
    pub fn execute(
        &self,
        handle: sys::cudnnHandle_t,
        plan: Descriptor,
        shape: &Shape,
        pointers: Vec<u64>,
    ) -> Result<(), KernelError> {
        let (scale, least) = (1.0 / (shape.dim as f32).sqrt(), f32::MIN);
        let shift = (shape.keys as i64 - shape.rows as i64) as i32;
        let (mut ids, mut given) = (IDS[..6].to_vec(), pointers[..5].to_vec());
        given.push(&raw const scale as u64);
        if shape.causal {
            ids.push(IDS[6]);
            given.push(&raw const least as u64);
            if shift != 0 {
                ids.push(IDS[7]);
                given.push(&raw const shift as u64);
            }
        }
        let mut made = Graph { all: Vec::new(), operations: Vec::new(), next: 0 };
        let pack = made.descriptor(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        set(pack, Attribute::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR, &given)?;
        set(pack, Attribute::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Type::CUDNN_TYPE_INT64, &ids)?;
        set(pack, Attribute::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR, &pointers[5..])?;
        finalize(pack, "operands")?;
        // SAFETY: the plan was built for these shapes; pointers are to device memory that lives in stream order, values by host
        // address are read before the call returns.
        check(unsafe { sys::cudnnBackendExecute(handle, plan, pack) }, "execute")
    }
}
