"""What is no tensor, no graph, no count or no number is refused by name, at every public function and layer."""

import re

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import data, nn

EDGES = torch.tensor([[0, 1, 2], [1, 2, 1]])
GRAPH = tcg.TCGraph.from_edge_index(EDGES, 3)
X, W, A, H = torch.ones(3, 2), torch.ones(3), torch.ones(3, 2), torch.ones(3, 2, 4)
ROWPTR, COL = torch.tensor([0, 1]), torch.tensor([0])
NAN, INF = float("nan"), float("inf")


def stored(**parts):
    """A graph read from a state with wrong parts."""
    return tcg.TCGraph.from_dict({**GRAPH.to_dict(), **parts})


WITH_A_GRAPH = {
    "spmm": lambda g: tcg.spmm(g, X),
    "sddmm": lambda g: tcg.sddmm(g, X, X),
    "edge_softmax": lambda g: tcg.edge_softmax(g, W),
    "segment": lambda g: tcg.segment(g, W),
    "gather_src": lambda g: tcg.gather_src(g, X),
    "gather_dst": lambda g: tcg.gather_dst(g, X),
    "gat_attention": lambda g: tcg.gat_attention(g, H, A, A),
    "gatv2_attention": lambda g: tcg.gatv2_attention(g, H, H, H[0]),
    "dot_attention": lambda g: tcg.dot_attention(g, H, H, H),
    "cosine_attention": lambda g: tcg.cosine_attention(g, X),
    "explain": lambda g: tcg.explain(g, X),
}


@pytest.mark.parametrize("call", WITH_A_GRAPH.values(), ids=WITH_A_GRAPH)
@pytest.mark.parametrize("g", [None, EDGES, "cora"], ids=["None", "Tensor", "str"])
def test_a_graph_that_is_none_says_how_to_translate(call, g):
    with pytest.raises(TypeError, match=f"g must be a TCGraph, got {type(g).__name__}: translate with TCGraph.from"):
        call(g)


OPERANDS = {
    "x of spmm": ("x", lambda t: tcg.spmm(GRAPH, t)),
    "weight of spmm": ("weight", lambda t: tcg.spmm(GRAPH, X, t)),
    "a of sddmm": ("a", lambda t: tcg.sddmm(GRAPH, t, X)),
    "b of sddmm": ("b", lambda t: tcg.sddmm(GRAPH, X, t)),
    "logits": ("logits", lambda t: tcg.edge_softmax(GRAPH, t)),
    "values": ("values", lambda t: tcg.segment(GRAPH, t)),
    "rows at sources": ("rows", lambda t: tcg.gather_src(GRAPH, t)),
    "rows at targets": ("rows", lambda t: tcg.gather_dst(GRAPH, t)),
    "h": ("h", lambda t: tcg.gat_attention(GRAPH, t, A, A)),
    "alpha_src": ("alpha_src", lambda t: tcg.gat_attention(GRAPH, H, t, A)),
    "alpha_dst": ("alpha_dst", lambda t: tcg.gat_attention(GRAPH, H, A, t)),
    "edge_logit": ("edge_logit", lambda t: tcg.gat_attention(GRAPH, H, A, A, edge_logit=t)),
    "left": ("left", lambda t: tcg.gatv2_attention(GRAPH, t, H, H[0])),
    "right": ("right", lambda t: tcg.gatv2_attention(GRAPH, H, t, H[0])),
    "att": ("att", lambda t: tcg.gatv2_attention(GRAPH, H, H, t)),
    "edge of gatv2": ("edge", lambda t: tcg.gatv2_attention(GRAPH, H, H, H[0], edge=t)),
    "q": ("q", lambda t: tcg.dot_attention(GRAPH, t, H, H)),
    "k": ("k", lambda t: tcg.dot_attention(GRAPH, H, t, H)),
    "v": ("v", lambda t: tcg.dot_attention(GRAPH, H, H, t)),
    "edge of dot": ("edge", lambda t: tcg.dot_attention(GRAPH, H, H, H, edge=t)),
    "x of cosine": ("x", lambda t: tcg.cosine_attention(GRAPH, t)),
    "x of explain": ("x", lambda t: tcg.explain(GRAPH, t)),
    "edge_index": ("edge_index", lambda t: tcg.TCGraph.from_edge_index(t)),
    "edge_weight": ("edge_weight", lambda t: tcg.TCGraph.from_edge_index(EDGES, 3, t)),
    "rowptr": ("rowptr", lambda t: tcg.TCGraph.from_csr(t, COL)),
    "col": ("col", lambda t: tcg.TCGraph.from_csr(ROWPTR, t)),
    "value": ("value", lambda t: tcg.TCGraph.from_csr(ROWPTR, COL, t)),
    "weight of a graph": ("weight", GRAPH.with_weight),
    "rowptr of sgt": ("rowptr", lambda t: tcg.sgt.translate(t, COL)),
    "col of sgt": ("col", lambda t: tcg.sgt.count_tiles(ROWPTR, t)),
}


@pytest.mark.parametrize("name, call", OPERANDS.values(), ids=OPERANDS)
def test_an_operand_that_is_no_dense_tensor_is_named(name, call):
    with pytest.raises(TypeError, match=rf"^{name} must be a Tensor, got list$"):
        call([[1.0]])
    with pytest.raises(TypeError, match=rf"^{name} must be a dense Tensor, got layout torch.sparse_coo: use .to_dense"):
        call(torch.ones(3, 2).to_sparse())


NUMBERS = {
    "scale of sddmm": ("scale", lambda v: tcg.sddmm(GRAPH, X, X, scale=v)),
    "slope of gat": ("negative_slope", lambda v: tcg.gat_attention(GRAPH, H, A, A, negative_slope=v)),
    "slope of gatv2": ("negative_slope", lambda v: tcg.gatv2_attention(GRAPH, H, H, H[0], negative_slope=v)),
    "scale of dot": ("scale", lambda v: tcg.dot_attention(GRAPH, H, H, H, scale=v)),
    "beta": ("beta", lambda v: tcg.cosine_attention(GRAPH, X, v)),
    "fill": ("fill", GRAPH.with_self_loops),
    "slope of a layer": ("GATConv: negative_slope", lambda v: nn.GATConv(4, 2, negative_slope=v)),
    "fill of a layer": ("GATv2Conv: fill_value", lambda v: nn.GATv2Conv(4, 2, edge_dim=1, fill_value=v)),
    "eps": ("GINConv: eps", lambda v: nn.GINConv(torch.nn.Identity(), eps=v)),
}


@pytest.mark.parametrize("name, call", NUMBERS.values(), ids=NUMBERS)
def test_a_number_is_finite(name, call):
    for value in (NAN, INF):
        with pytest.raises(ValueError, match=f"^{name} must be finite, got {value}"):
            call(value)
    with pytest.raises(TypeError, match=f"^{name} must be a number, got dict"):
        call({})


PROBABILITIES = {
    "gat": ("dropout", lambda v: tcg.gat_attention(GRAPH, H, A, A, dropout=v)),
    "gatv2": ("dropout", lambda v: tcg.gatv2_attention(GRAPH, H, H, H[0], dropout=v)),
    "dot": ("dropout", lambda v: tcg.dot_attention(GRAPH, H, H, H, dropout=v)),
    "cosine": ("dropout", lambda v: tcg.cosine_attention(GRAPH, X, dropout=v)),
    "GATConv": ("GATConv: dropout", lambda v: nn.GATConv(4, 2, dropout=v)),
    "GATv2Conv": ("GATv2Conv: dropout", lambda v: nn.GATv2Conv(4, 2, dropout=v)),
    "TransformerConv": ("TransformerConv: dropout", lambda v: nn.TransformerConv(4, 2, dropout=v)),
}


@pytest.mark.parametrize("name, call", PROBABILITIES.values(), ids=PROBABILITIES)
def test_dropout_is_a_probability(name, call):
    for value in (NAN, -0.1, 1.5):
        with pytest.raises(ValueError, match=rf"^{name} must be a probability in \[0, 1\], got {value}"):
            call(value)
    with pytest.raises(TypeError, match=f"^{name} must be a number, got 'half'"):
        call("half")


COUNTS = {
    "heads of GATConv": ("GATConv: heads", 1, lambda v: nn.GATConv(4, 2, heads=v)),
    "heads of GATv2Conv": ("GATv2Conv: heads", 1, lambda v: nn.GATv2Conv(4, 2, heads=v)),
    "heads of TransformerConv": ("TransformerConv: heads", 1, lambda v: nn.TransformerConv(4, 2, heads=v)),
    "edge_dim": ("GATConv: edge_dim", -1, lambda v: nn.GATConv(4, 2, edge_dim=v)),
    "edge_dim of GINE": ("GINEConv: edge_dim", -1, lambda v: nn.GINEConv(torch.nn.Linear(4, 2), edge_dim=v)),
    "K": ("SGConv: K", 0, lambda v: nn.SGConv(4, 2, K=v)),
    "out_channels": ("SAGEConv: out_channels", 0, lambda v: nn.SAGEConv(4, v)),
    "max_graphs": ("max_graphs", 1, tcg.TCGraphCache),
    "max_bytes": ("max_bytes", 1, lambda v: tcg.TCGraphCache(4, v)),
    "window": ("window", 1, lambda v: tcg.sgt.translate(ROWPTR, COL, v)),
    "num_cols": ("num_cols", 0, lambda v: tcg.sgt.translate(ROWPTR, COL, num_cols=v)),
    "num_nodes of GraphData": ("num_nodes", 0, lambda v: data.GraphData(edge_index=EDGES, num_nodes=v, name="g")),
    "num_nodes of undirected": ("num_nodes", 0, lambda v: data.undirected(EDGES, v)),
    "num_nodes of rmat": ("num_nodes", 0, lambda v: data.rmat(v, 8)),
    "num_nodes of grid_road": ("num_nodes", 0, lambda v: data.grid_road(v, 8)),
}


@pytest.mark.parametrize("name, least, call", COUNTS.values(), ids=COUNTS)
def test_a_count_is_an_integer_and_large_enough(name, least, call):
    for value in (2.0, "2", True):
        with pytest.raises(TypeError, match=rf"^{name} must be an integer, got {value!r}"):
            call(value)
    with pytest.raises(ValueError, match=f"^{name} must be at least {least}, got {least - 1}"):
        call(least - 1)


LAYERS = {
    "GCNConv": lambda **o: nn.GCNConv(4, 2, **o),
    "GINConv": lambda **o: nn.GINConv(torch.nn.Linear(4, 2), **o),
    "GINEConv": lambda **o: nn.GINEConv(torch.nn.Linear(4, 2), **o),
    "SAGEConv": lambda **o: nn.SAGEConv(4, 2, **o),
    "GATConv": lambda **o: nn.GATConv(4, 2, **o),
    "GATv2Conv": lambda **o: nn.GATv2Conv(4, 2, **o),
    "AGNNConv": lambda **o: nn.AGNNConv(**o),
    "TransformerConv": lambda **o: nn.TransformerConv(4, 2, **o),
    "GraphConv": lambda **o: nn.GraphConv(4, 2, **o),
    "SGConv": lambda **o: nn.SGConv(4, 2, **o),
}
FEATURES = torch.ones(3, 4)


def forward(name: str, x, edges, *more, **options):
    extra = (torch.ones(3, 4),) if name == "GINEConv" and not more else more
    return LAYERS[name]()(x, edges, *extra, **options)


@pytest.mark.parametrize("name", LAYERS)
def test_options_of_layers_are_told_apart(name):
    make = LAYERS[name]
    for aggr in ("foo", 3, None, [], ["sum", "foo"]):
        got = re.escape(repr(aggr))
        with pytest.raises(ValueError, match=rf"^{name}: aggr must be one of 'add', 'sum'.*, got {got}"):
            make(aggr=aggr)
    for option, value in (("aggr", "median"), ("aggr", "LSTMAggregation"), ("node_dim", 1), ("decomposed_layers", 2)):
        words = f"^{name}: {option}={value!r} is not supported here; torch_geometric.nn.{name} supports it"
        with pytest.raises(NotImplementedError, match=words):
            make(**{option: value})
    with pytest.raises(ValueError, match="flow must be one of 'source_to_target', 'target_to_source', got 'up'"):
        make(flow="up")
    with pytest.raises(ValueError, match="precision must be one of 'ieee', 'tf32', got 'fp8'"):
        make(precision="fp8")
    with pytest.raises(TypeError, match=f"{name} got unknown arguments depth"):
        make(depth=2)


@pytest.mark.parametrize("name", LAYERS)
def test_features_of_layers_are_dense_floating_point_matrices(name):
    with pytest.raises(ValueError, match=f"{name}: x must be (one|a) tensor.*got list"):
        forward(name, [[1.0]], EDGES)
    with pytest.raises(TypeError, match=f"{name}: features must be floating point, got torch.int64"):
        forward(name, FEATURES.long(), EDGES)
    with pytest.raises(TypeError, match=f"{name}: features must be dense, got layout torch.sparse_coo"):
        forward(name, FEATURES.to_sparse(), EDGES)
    for x in (torch.ones(4), torch.ones(())):
        with pytest.raises(ValueError, match=rf"{name}: features must have shape \[nodes, channels\], got \("):
            forward(name, x, EDGES)


MAPPED = [name for name in LAYERS if name not in ("GINConv", "GINEConv", "AGNNConv")]


@pytest.mark.parametrize("name", MAPPED)
def test_features_of_layers_fit_their_parameters(name):
    with pytest.raises(ValueError, match=rf"{name}: x.* must have 4 features, got shape \(3, 5\)"):
        forward(name, torch.ones(3, 5), EDGES)
    with pytest.raises(TypeError, match=f"{name}: x.* is torch.float64, but the layer is torch.float32"):
        forward(name, FEATURES.double(), EDGES)
    with pytest.raises(ValueError, match=f"{name}: x.* is on meta, but the layer is on cpu"):
        forward(name, FEATURES.to("meta"), EDGES)


@pytest.mark.parametrize("name", LAYERS)
def test_graphs_of_layers_are_checked(name):
    for edges, error, words in (
        (EDGES.tolist(), TypeError, "edge_index must be an integer tensor.*got list"),
        (None, TypeError, "edge_index must be an integer tensor.*got NoneType"),
        (EDGES.bool(), ValueError, "edge_index must be int32 or int64, got torch.bool"),
        (EDGES.float(), ValueError, "edge_index must be int32 or int64, got torch.float32"),
        (EDGES.t(), ValueError, r"edge_index must have shape \[2, num_edges\], got \(3, 2\)"),
        (EDGES + 5, ValueError, r"edge_index holds node 5 in edge 0 \(5, 6\), but ids must lie in \[0, 3\)"),
        (EDGES.to("meta"), ValueError, "edge_index is on meta"),
        (torch.eye(5).to_sparse(), ValueError, r"5 sources \(columns\) and 5 targets.*num_nodes is \(3, 3\)"),
        (tcg.TCGraph.from_edge_index(EDGES, 7), ValueError, r"7 targets.*does not fit num_nodes=\(3, 3\)"),
    ):
        with pytest.raises(error, match=words):
            forward(name, FEATURES, edges)


@pytest.mark.parametrize("name", ["GCNConv", "GraphConv", "SGConv"])
def test_edge_weights_of_layers_are_named(name):
    for weight, error, words in (
        ([1.0], TypeError, "edge_weight must be a Tensor, got list"),
        (1.0, TypeError, "edge_weight must be a Tensor, got float"),
        (torch.ones(4), ValueError, r"edge_weight must have 3 values, one an edge, got \(4,\)"),
        (torch.tensor(1.0), ValueError, r"edge_weight must have 3 values, one an edge, got \(\)"),
        (torch.ones(3).long(), TypeError, "edge_weight must be floating point, got torch.int64"),
        (torch.ones(3, device="meta"), ValueError, "edge_weight is on meta, but the graph is on cpu"),
    ):
        with pytest.raises(error, match=f"{name}: {words}"):
            forward(name, FEATURES, EDGES, weight)


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv", "GINEConv"])
def test_edge_features_of_layers_are_named(name):
    layer = LAYERS[name](edge_dim=2)
    for attr, error, words in (
        ([1.0], TypeError, "edge_attr must be a Tensor, got list"),
        (torch.ones(4, 2), ValueError, r"edge_attr must have .*3.*got \(4, 2\)"),
        (torch.ones(3, 5), ValueError, r"edge_attr must have .*2.*got.* \(3, 5\)"),
        (torch.tensor(1.0), ValueError, r"edge_attr must have .*3.*got \(\)"),
        (torch.ones(3, 2).long(), TypeError, "edge_attr must be floating point, got torch.int64"),
        (torch.ones(3, 2, device="meta"), ValueError, "edge_attr is on meta, but the graph is on cpu"),
    ):
        with pytest.raises(error, match=f"{name}: {words}"):
            layer(FEATURES, EDGES, attr)


@pytest.mark.parametrize("name", ["SAGEConv", "GINConv", "GINEConv", "GraphConv", "GATConv"])
def test_sizes_of_layers_are_pairs_of_counts(name):
    for size, error, words in (
        (3, TypeError, r"size must be \(sources, targets\), counts or None, got 3"),
        ((3,), TypeError, r"size must be \(sources, targets\), counts or None, got \(3,\)"),
        ((3.0, 3.0), TypeError, r"size must be \(sources, targets\), counts or None, got \(3.0, 3.0\)"),
        ((3, -1), ValueError, r"size must hold counts of at least 0, got \(3, -1\)"),
        ((3, 4), ValueError, r"size \(3, 4\) says 4 targets, but their features have shape \(3, 4\)"),
    ):
        with pytest.raises(error, match=f"{name}: {words}"):
            forward(name, FEATURES, EDGES, size=size) if name != "GINEConv" else LAYERS[name]()(
                FEATURES, EDGES, FEATURES, size
            )


@pytest.mark.parametrize("layer", [nn.SAGEConv, nn.GATConv, nn.GATv2Conv, nn.TransformerConv, nn.GraphConv])
def test_channels_are_counts_or_pairs_of_them(layer):
    for channels in ("a", 4.0, None, (4,), (4, 4, 4), (4, "a")):
        words = f"in_channels must be an integer or a pair (source, target) of them, got {channels!r}"
        with pytest.raises(TypeError, match=re.escape(f"{layer.__name__}: {words}")):
            layer(channels, 2)
    with pytest.raises(ValueError, match=f"{layer.__name__}: in_channels must be at least -1, got -2"):
        layer(-2, 2)


@pytest.mark.parametrize("layer", [nn.GCNConv, nn.SGConv])
def test_channels_of_one_node_set_are_a_count(layer):
    with pytest.raises(TypeError, match=rf"{layer.__name__}: in_channels must be an integer, got \(4, 4\)"):
        layer((4, 4), 2)


REST = {
    "nn of GIN": (lambda: nn.GINConv("mlp"), TypeError, "GINConv: nn must be a module, got str"),
    "nn of GINE": (lambda: nn.GINEConv(None), TypeError, "GINEConv: nn must be a module, got NoneType"),
    "fill_value": (
        lambda: nn.GATConv(4, 2, fill_value="median"), ValueError,
        "GATConv: fill_value must be a number, a Tensor or one of 'add', 'sum', 'mean', 'min', 'max', 'mul', got 'med",
    ),
    "PyG's fill_value": (
        lambda: nn.GATConv(4, 2, fill_value=None), NotImplementedError, "torch_geometric.nn.GATConv supports it",
    ),
    "id too large": (
        lambda: tcg.TCGraph.from_edge_index(torch.tensor([[2**40], [0]])), ValueError,
        "edge_index holds node 1099511627776 in edge 0 (1099511627776, 0), but ids must lie in [0, 2147483647)",
    ),
    "truth as count": (lambda: tcg.TCGraph.from_edge_index(EDGES, True), TypeError, "num_nodes must be a count or a"),
    "list as count": (
        lambda: tcg.TCGraphCache().graph(EDGES, [3, 3]), TypeError, "num_nodes must be a count or a tuple of two, got",
    ),
    "float as count": (lambda: tcg.as_graph(GRAPH, 3.0), TypeError, "num_nodes must be a count or a tuple of two"),
    "size": (lambda: tcg.TCGraph.from_csr(ROWPTR, COL, size=1), TypeError, "size must be (num_rows, num_cols), got 1"),
    "sparse size": (
        lambda: tcg.as_graph(torch.eye(3).to_sparse(), 4), ValueError,
        "the sparse adjacency has 3 sources (columns) and 3 targets (rows), but num_nodes is 4",
    ),
    "flow": (lambda: tcg.as_graph(EDGES, flow="up"), ValueError, "flow must be one of 'source_to_target'"),
    "reduce": (lambda: tcg.segment(GRAPH, W, None), ValueError, "reduce must be one of 'sum', 'mean', 'max', 'min'"),
    "scale of two": (lambda: tcg.sddmm(GRAPH, X, X, scale=W), ValueError, "scale must be one number, got shape (3,)"),
    "beta": (lambda: tcg.cosine_attention(GRAPH, X, torch.ones(5)), ValueError, "beta must broadcast to x of shape"),
    "float8": (
        lambda: tcg.spmm(GRAPH, X.to(torch.float8_e4m3fn)), TypeError,
        "x: features must be float32, float64, float16 or bfloat16, got torch.float8_e4m3fn",
    ),
    "batch": (lambda: tcg.from_batch(GRAPH), TypeError, "graphs must be a sequence of TCGraph, got TCGraph"),
    "in a batch": (lambda: tcg.from_batch([GRAPH, X]), TypeError, "graphs must hold TCGraph, got Tensor at place 1"),
    "no sparse": (lambda: tcg.from_sparse([[1]]), TypeError, "adj_t must be a torch sparse tensor (COO, CSR or CSC)"),
    "complex": (lambda: tcg.from_sparse(torch.eye(2).cfloat().to_sparse()), TypeError, "must hold real values, got"),
    "device": (lambda: GRAPH.to(None), TypeError, "device must be a torch.device or its name, got NoneType"),
    "state": (lambda: tcg.TCGraph.from_dict([]), TypeError, "state must be a dictionary that to_dict wrote, got list"),
    "part of a state": (
        lambda: tcg.TCGraph.from_dict({"col": COL}), ValueError,
        "state lacks rowptr, edge, weight, num_cols, path, reorder, got col",
    ),
    "stored col": (lambda: stored(col=torch.tensor([9, 0, 0])), ValueError, "col must lie in [0, 3), got 0 to 9"),
    "stored edge": (lambda: stored(edge=torch.tensor([0, -1, 2])), ValueError, "edge must lie in [0, 3), got -1 to 2"),
    "short edge": (lambda: stored(edge=torch.tensor([0])), ValueError, "edge must be empty or hold integers as col"),
    "stored rowptr": (lambda: stored(rowptr=torch.tensor([0, 9, 2, 3])), ValueError, "rowptr must not decrease, got 9"),
    "no rowptr": (lambda: stored(rowptr=None), TypeError, "rowptr must be a Tensor, got NoneType"),
    "stored size": (lambda: stored(num_cols="3"), TypeError, "num_cols must be a count or a tuple of two, got '3'"),
    "stored path": (lambda: stored(path="x"), ValueError, "path must be one of 'auto', 'tc', 'cuda', got 'x'"),
    "stored order": (lambda: stored(reorder="x"), ValueError, "reorder must be one of 'none', 'degree'"),
    "stored weight": (lambda: stored(weight=torch.ones(2)), ValueError, "weight must have shape [3] or [3, H], got"),
    "data": (lambda: tcg.transforms.ToTCGraph()([1]), TypeError, "data must be a PyG Data, HeteroData or batch, got"),
    "reorder": (lambda: tcg.transforms.ToTCGraph(reorder="x"), ValueError, "reorder must be one of 'none', 'degree'"),
    "name of weights": (lambda: tcg.transforms.ToTCGraph(weight=1), TypeError, "weight must be the name of an attr"),
    "seed": (lambda: data.rmat(8, 8, seed=0.5), TypeError, "seed must be an integer, got 0.5"),
    "share": (lambda: data.sbm([2, 2], "half", 0.1), TypeError, "p_in must be a number, got 'half'"),
    "blocks": (lambda: data.sbm(4, 0.5, 0.1), TypeError, "blocks must be a list of sizes, got 4"),
    "exponent": (lambda: data.power_law(20, 40, NAN), ValueError, "exponent must be finite, got nan"),
    "graphs": (lambda: data.molecule_batch(2.5, 5, 2.0), TypeError, "graphs must be an integer, got 2.5"),
    "x of data": (
        lambda: data.GraphData(edge_index=EDGES, num_nodes=3, name="g", x=[1]), TypeError,
        "x must be a Tensor or None, got list",
    ),
    "ids of undirected": (
        lambda: data.undirected(EDGES, 2), ValueError, "edge_index holds node 2 in edge 2 (2, 1), but ids must lie in",
    ),
    "source": (lambda: data.locate("cora"), TypeError, "source must be a Source, got str; load(name) finds sets by"),
    "name": (lambda: data.planetoid(3), TypeError, "name must be a string, got int"),
    "path": (lambda: data.npz(None), TypeError, "path must be a string or a path, got NoneType"),
    "delimiter": (lambda: data.edge_list("x", delimiter=";;"), ValueError, "delimiter must be one character or None"),
}  # fmt: skip


@pytest.mark.parametrize("call, error, words", REST.values(), ids=REST)
def test_everything_else_is_named_too(call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call()


def test_scipy_matrices_hold_real_numbers():
    sparse, numpy = pytest.importorskip("scipy.sparse"), pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="SciPy adjacency must hold real values, got complex128"):
        tcg.from_scipy(sparse.csr_array(numpy.eye(2) * 1j))
    wide = tcg.from_scipy(sparse.csr_array(numpy.eye(2, dtype=numpy.longdouble) * 2))
    assert wide.weight.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", LAYERS)
def test_torchscript_of_a_layer_says_what_to_use(name):
    with pytest.raises(TypeError, match=f"TorchScript cannot compile {name}: use torch.compile or torch.export"):
        torch.jit.script(torch.nn.Sequential(LAYERS[name]()))
