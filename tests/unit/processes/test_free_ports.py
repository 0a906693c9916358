from spark_kafkalite.processes.free_ports import free_ports


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20
