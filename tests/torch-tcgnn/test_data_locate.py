"""Where loaders look for files, and what they say when there are none."""

import shutil
from urllib.error import URLError

import pytest
from torch_tcgnn import data
from torch_tcgnn.data.locate import search_path


@pytest.fixture
def files(tmp_path):
    """``files(folder)``: a two-line edge file of set "toy" put into ``tmp_path / folder``."""

    def put(folder: str):
        path = tmp_path / folder / "toy.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("0,1\n1,2\n")
        return path

    return put


TOY = data.Source("toy", ("toy", "Toy-Set"), (("toy.csv.gz", "toy.csv"),))


@pytest.mark.parametrize("folder", ["", "toy", "raw", "Toy-Set/raw", "TOY"])
def test_root_may_hold_the_files_in_any_usual_layout(files, tmp_path, folder):
    path = files(folder)
    assert data.locate(TOY, tmp_path) == [path]


def test_root_is_the_only_place_when_given(files, tmp_path, monkeypatch):
    files("env/toy")
    monkeypatch.setenv("TORCH_EXT_DATA", str(tmp_path / "env"))
    with pytest.raises(
        FileNotFoundError, match=r"'toy' \(toy\.csv\.gz\) not found in .*elsewhere; give root=.*TORCH_EXT_DATA"
    ):
        data.locate(TOY, tmp_path / "elsewhere")


def test_order_without_root_is_shared_data_then_the_environment(files, tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("TORCH_EXT_DATA", str(tmp_path / "env"))
    from_environment = files("env/toy")
    assert data.locate(TOY) == [from_environment]
    beside = files("shared/data/toy")
    assert data.locate(TOY) == [beside]
    places = list(search_path())
    assert places.index(tmp_path / "shared" / "data") < places.index(tmp_path / "env")


def test_a_folder_that_lacks_one_file_does_not_count(files, tmp_path):
    both = data.Source("toy", ("toy",), (("toy.csv",), ("labels.csv",)))
    files("toy")
    with pytest.raises(FileNotFoundError, match=r"toy\.csv, labels\.csv"):
        data.locate(both, tmp_path)


def test_missing_planetoid_names_set_files_and_places(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'cora' \(ind\.cora\.y, .*\) not found in .*download=True"):
        data.planetoid("cora", tmp_path)


def test_download_needs_a_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCH_EXT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="needs a folder: give root= or set TORCH_EXT_DATA"):
        data.locate(TOY, download=True)


def test_download_without_torch_geometric_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "torch_geometric.data", None)
    with pytest.raises(ImportError, match=r"pip install 'torch-tcgnn\[pyg\]"):
        data.planetoid("cora", tmp_path, download=True)


def test_download_of_a_set_that_torch_geometric_lacks_is_refused(tmp_path):
    pytest.importorskip("torch_geometric")
    with pytest.raises(ValueError, match="no files of data set 'polblogs'"):
        data.load("polblogs", tmp_path, download=True)


def test_failed_download_says_so_and_leaves_nothing_behind(monkeypatch, tmp_path):
    pyg = pytest.importorskip("torch_geometric.data")

    def offline(url, folder, **options):
        raise URLError("no route to host")

    monkeypatch.setattr(pyg, "download_url", offline)
    with pytest.raises(
        ConnectionError, match=r"could not fetch 'cora' from .*ind\.cora\.x .*no route to host.*by hand"
    ):
        data.planetoid("cora", tmp_path, download=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.data
def test_download_asks_for_the_files_that_are_read(monkeypatch, tmp_path, data_root):
    pyg = pytest.importorskip("torch_geometric.data")
    if not (data_root / "cora").is_dir():
        pytest.skip("no cora in the data folder")

    def from_disk(url, folder, **options):
        name = url.rsplit("/", 1)[1]
        return shutil.copyfile(data_root / "cora" / name, f"{folder}/{name}")

    monkeypatch.setattr(pyg, "download_url", from_disk)
    graph = data.planetoid("cora", tmp_path, download=True)
    assert graph.num_edges == 10_556
    assert data.planetoid("cora", tmp_path).num_edges == 10_556
