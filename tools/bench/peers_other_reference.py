"""What residual streams, Engram, embedding and router mean; nothing is shared with a peer.

Plain float64 tensors on the CPU, rounded to bf16 where the op rounds.
"""

import torch


def rounded(x):
    return x.to(torch.bfloat16).double()


def hc_post(y, h, post, comb):
    return rounded(torch.einsum("tj,td->tjd", post, y) + torch.einsum("tij,tid->tjd", comb, h))


def hc_fold_norm(h, pre, weight):
    folded = rounded(torch.einsum("ti,tid->td", pre, h))
    rms = (folded.pow(2).sum(1, keepdim=True) / folded.shape[1] + 1e-20).sqrt()
    return rounded(folded / rms * weight)


def hc_stats(h, fn, scale, base):
    v = h.reshape(len(h), -1)
    rms = (v.pow(2).sum(1) / v.shape[1] + 1e-20).sqrt()
    m = torch.einsum("tc,kc->tk", v, fn) / rms[:, None]
    kind = torch.tensor([0] * 4 + [1] * 4 + [2] * 16)
    logits = m * scale[kind] + base
    gates = 1 / (1 + (-logits[:, :8]).exp())
    comb = torch.stack([sinkhorn(row.reshape(4, 4)) for row in logits[:, 8:]])
    return gates[:, :4] + 1e-6, 2 * gates[:, 4:], comb


def sinkhorn(logits):
    """4 x 4; ends on a step over columns."""
    a = logits.exp()
    a = a / a.sum(1)[:, None] + 1e-6
    for step in range(39):
        axis = step % 2
        a = a / (a.sum(axis).unsqueeze(axis) + 1e-6)
    return a


def check_examples():
    """The worked examples of the specification."""

    def near(what, found, expected, tolerance):
        error = (found - torch.tensor(expected, dtype=torch.float64)).abs().max()
        if not error <= tolerance:
            raise AssertionError(f"{what}: {found}")

    rows = [[0.5, -1, 2, 0], [1.5, 0.25, -0.75, 3], [-2, 1, 0, 0.5], [0, 0, 4, -1]]
    mixes = [
        [0.5211828, 0.1010692, 0.2359436, 0.1418030],
        [0.3058067, 0.0761459, 0.0032560, 0.6147911],
        [0.0405411, 0.7076579, 0.0302585, 0.2215422],
        [0.1324684, 0.1151260, 0.7305408, 0.0218626],
    ]
    near("Sinkhorn", sinkhorn(torch.tensor(rows, dtype=torch.float64)), mixes, 1e-7)
