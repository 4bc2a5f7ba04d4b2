"""Skips, with the reason, what cannot run here: the suite passes with NumPy alone."""

import importlib.util

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None


def has_gpu():
    if not HAS_TORCH:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_configure(config):
    config.addinivalue_line("markers", "torch: needs PyTorch")
    config.addinivalue_line("markers", "cuda: needs an NVIDIA GPU and PyTorch with CUDA")


def pytest_collection_modifyitems(items):
    gpu = any(item.get_closest_marker("cuda") for item in items) and has_gpu()
    for item in items:
        if item.get_closest_marker("torch") and not HAS_TORCH:
            item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))
        if item.get_closest_marker("cuda") and not gpu:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU that PyTorch can use"))
