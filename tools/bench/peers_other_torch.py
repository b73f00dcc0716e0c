"""Residual streams, Engram, embedding and router in PyTorch, as a plain serving stack writes them.

Nothing is in place: a call returns new streams.
"""

import torch

from peers_small_torch import EPSILON, rms_norm

HC_EPSILON = 1e-6
SINKHORN_STEPS = 20


def hc_post(y, h, post, comb):
    mixed = torch.bmm(comb.mT, h.float())
    return (post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed).to(torch.bfloat16)


def hc_post_sums(y, h, post, comb):
    """The same without a matrix product, which a compiler could not fuse."""
    mixed = (comb.unsqueeze(-1) * h.float().unsqueeze(2)).sum(1)
    return (post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed).to(torch.bfloat16)


def sum_of_squares(h):
    return h.float().square().sum((1, 2))


def hc_fold_norm(h, pre, weight):
    folded = (pre.unsqueeze(-1) * h.float()).sum(1).to(torch.bfloat16)
    return rms_norm(folded, weight)


def hc_stats(h, fn, scale, base):
    v = h.flatten(1).float()
    m = torch.nn.functional.linear(v, fn)
    m = m * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPSILON)
    pre = torch.sigmoid(m[:, :4] * scale[0] + base[:4]) + HC_EPSILON
    post = 2 * torch.sigmoid(m[:, 4:8] * scale[1] + base[4:8])
    return pre, post, sinkhorn((m[:, 8:] * scale[2] + base[8:]).unflatten(-1, (4, 4)))


def sinkhorn(logits):
    a = logits.softmax(-1) + HC_EPSILON
    a = a / (a.sum(-2, keepdim=True) + HC_EPSILON)
    for _ in range(SINKHORN_STEPS - 1):
        a = a / (a.sum(-1, keepdim=True) + HC_EPSILON)
        a = a / (a.sum(-2, keepdim=True) + HC_EPSILON)
    return a


def hc_post_fold_norm(y, h, post, comb, pre, weight):
    h = hc_post(y, h, post, comb)
    return h, hc_fold_norm(h, pre, weight)


def hc_post_fold_norm_sums(y, h, post, comb, pre, weight):
    h = hc_post_sums(y, h, post, comb)
    return h, hc_fold_norm(h, pre, weight)


def hc_boundary(y, h, post, comb, pre, weight, fn, scale, base):
    """From the output of a sub-layer to the input and the gates of the next one."""
    h, x = hc_post_fold_norm(y, h, post, comb, pre, weight)
    return h, x, *hc_stats(h, fn, scale, base)


def hc_boundary_sums(y, h, post, comb, pre, weight, fn, scale, base):
    h, x = hc_post_fold_norm_sums(y, h, post, comb, pre, weight)
    return h, x, *hc_stats(h, fn, scale, base)
