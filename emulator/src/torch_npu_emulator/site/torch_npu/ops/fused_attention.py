"""Fused attention (first form)."""
import torch
from torch_npu.ops.registry import emulates


def _attend(q, k, v, scale, mask, sink=None):
    """q [Tq,N,D] k,v [Tk,Nkv,D]; mask bool [Tq,Tk] True = masked. -> out [Tq,N,Dv] f32, lse [Tq,N]"""
    Tq, N, D = q.shape
    Nk = k.shape[1]
    g = N // Nk
    qf = q.float().view(Tq, Nk, g, D).permute(1, 2, 0, 3)          # Nk,g,Tq,D
    kf = k.float().permute(1, 2, 0).unsqueeze(1)                    # Nk,1,D,Tk
    vf = v.float().permute(1, 0, 2).unsqueeze(1)                    # Nk,1,Tk,Dv
    s = torch.matmul(qf, kf) * scale
    if mask is not None: s = s.masked_fill(mask, float("-inf"))
    m = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_full((*s.shape[:-1], 1), float("-inf"))
    m0 = torch.where(m == float("-inf"), torch.zeros_like(m), m)
    p = torch.exp(s - m0)
    den = p.sum(-1, keepdim=True)
    if sink is not None: den = den + torch.exp(sink.float().view(Nk, g, 1, 1) - m0)
    o = torch.matmul(p, vf) / torch.where(den == 0, torch.ones_like(den), den)
    lse = torch.where(den == 0, torch.full_like(den, float("inf")), torch.log(den) + m0)
    return o.permute(2, 0, 1, 3).reshape(Tq, N, -1), lse.permute(2, 0, 1, 3).reshape(Tq, N)


def _mask(tq, tk, sparse_mode, atten_mask, pre, nxt, b):
    if sparse_mode in (2, 3, 4):
        off = 0 if sparse_mode == 2 else tk - tq
        qi = torch.arange(tq).view(-1, 1) + off
        ki = torch.arange(tk).view(1, -1)
        if sparse_mode == 4:
            return (ki > qi + nxt) | (ki < qi - pre)
        return ki > qi
    if atten_mask is not None:
        m = atten_mask.bool()
        while m.dim() > 3: m = m.squeeze(1)
        if m.dim() == 3: m = m[min(b, m.shape[0] - 1)]
        return m[:tq, :tk]
    if sparse_mode == 0 and (pre < 2147483647 or nxt < 2147483647):
        qi = torch.arange(tq).view(-1, 1); ki = torch.arange(tk).view(1, -1)
        return (ki > qi + nxt) | (ki < qi - pre)
    return None


def _fia(query, key, value, *, atten_mask, qlens, kvlens, block_table, n, nkv, scale, pre, nxt, layout, sparse, block_size, lse_flag, sink=None):
    if layout.startswith("TND"): pass
    nkv = nkv or n
    base = layout.split("_")[0]
    if base == "TND":
        T, _, D = query.shape
        q_ends = list(qlens)
        B = len(q_ends)
        q_rng = [(q_ends[i - 1] if i else 0, q_ends[i]) for i in range(B)]
        qs = [query[a:b] for a, b in q_rng]
    elif base in ("BSH", "BSND"):
        B, S = query.shape[:2]
        q4 = query.view(B, S, n, -1)
        ql = list(qlens) if qlens else [S] * B
        qs = [q4[i, : ql[i]] for i in range(B)]
    elif base == "BNSD":
        B, _, S, _ = query.shape
        ql = list(qlens) if qlens else [S] * B
        qs = [query[i].transpose(0, 1)[: ql[i]] for i in range(B)]
    else:
        raise NotImplementedError(f"FIA layout {layout}")
    ks, vs = [], []
    if block_table is not None:
        nb = key.shape[0]
        if key.dim() == 3:      # [blocks, block_size, H]
            kc, vc = key.unflatten(-1, (nkv, -1)), value.unflatten(-1, (nkv, -1))
        elif key.dim() == 4:    # [blocks, nkv, block_size, D] (BnNBsD)
            kc, vc = key.transpose(1, 2), value.transpose(1, 2)
        else:
            raise NotImplementedError("FIA NZ paged cache")
        for i in range(B):
            L = int(kvlens[i])
            idx = block_table[i, : (L + block_size - 1) // block_size].long()
            ks.append(kc[idx].reshape(-1, nkv, kc.shape[-1])[:L]); vs.append(vc[idx].reshape(-1, nkv, vc.shape[-1])[:L])
    elif base == "TND":
        ends = list(kvlens) if kvlens is not None else list(qlens)
        for i in range(B):
            a, b = (ends[i - 1] if i else 0), ends[i]
            ks.append(key[a:b]); vs.append(value[a:b])
    else:
        for i in range(B):
            if base == "BNSD": k, v = key[i].transpose(0, 1), value[i].transpose(0, 1)
            else: k, v = key.view(B, key.shape[1], nkv, -1)[i], value.view(B, key.shape[1], nkv, -1)[i]
            L = int(kvlens[i]) if kvlens else k.shape[0]
            ks.append(k[:L]); vs.append(v[:L])
    outs, lses = [], []
    for i in range(B):
        o, l = _attend(qs[i], ks[i], vs[i], scale, _mask(qs[i].shape[0], ks[i].shape[0], sparse, atten_mask, pre, nxt, i), sink)
        outs.append(o.to(query.dtype)); lses.append(l)
    if base == "TND":
        out = query.new_zeros(query.shape[0], n, vs[0].shape[-1])
        lse = torch.zeros(query.shape[0], n, 1, dtype=torch.float32)
        for (a, b), o, l in zip(q_rng, outs, lses):
            out[a:b] = o; lse[a:b, :, 0] = l
    elif base == "BNSD":
        S = query.shape[2]
        out = query.new_zeros(B, n, S, vs[0].shape[-1]); lse = torch.zeros(B, n, S, 1)
        for i, (o, l) in enumerate(zip(outs, lses)):
            out[i, :, : o.shape[0]] = o.transpose(0, 1); lse[i, :, : o.shape[0], 0] = l.t()
    else:
        S = query.shape[1]
        out = query.new_zeros(B, S, n, vs[0].shape[-1]); lse = torch.zeros(B, n, S, 1)
        for i, (o, l) in enumerate(zip(outs, lses)):
            out[i, : o.shape[0]] = o; lse[i, :, : o.shape[0], 0] = l.t()
        if base == "BSH": out = out.reshape(B, S, -1)
    return out, (lse if lse_flag else torch.zeros(1, dtype=torch.float32))


def _fia1(query, key, value, *, atten_mask=None, actual_seq_lengths=None, actual_seq_lengths_kv=None, block_table=None, num_heads=1, scale=1.0,
          pre_tokens=2147483647, next_tokens=2147483647, input_layout="BSH", num_key_value_heads=0, sparse_mode=0, block_size=0,
          softmax_lse_flag=False, inner_precise=0, antiquant_mode=0, key_antiquant_mode=0, value_antiquant_mode=0, **other):
    bad = [k for k, v in other.items() if v is not None]
    if bad: raise NotImplementedError(f"FIA args {bad}")
    return _fia(query, key, value, atten_mask=atten_mask, qlens=actual_seq_lengths, kvlens=actual_seq_lengths_kv, block_table=block_table, n=num_heads,
                nkv=num_key_value_heads, scale=scale, pre=pre_tokens, nxt=next_tokens, layout=input_layout, sparse=sparse_mode, block_size=block_size, lse_flag=softmax_lse_flag)


emulates("npu_fused_infer_attention_score")(_fia1)


@emulates("npu_fused_infer_attention_score.out")
def _fia1_out(query, key, value, *, workspace=None, out, **k):
    o, l = _fia1(query, key, value, **k)
    out[0].copy_(o.view(out[0].shape))
    if out[1].shape == l.shape: out[1].copy_(l)
    return out[0], out[1]


@emulates("_npu_fused_infer_attention_score_get_max_workspace")
def _ws(query, key, value, **k):
    return torch.empty(1, dtype=torch.uint8)


@emulates("_npu_fused_infer_attention_score_v2_get_max_workspace")
def _ws2(query, key, value, **k):
    return torch.empty(1, dtype=torch.uint8)


def _fia2(query, key, value, *, atten_mask=None, actual_seq_qlen=None, actual_seq_kvlen=None, block_table=None, num_query_heads=1, softmax_scale=1.0,
          pre_tokens=2147483647, next_tokens=2147483647, input_layout="BSH", num_key_value_heads=0, sparse_mode=0, block_size=0,
          return_softmax_lse=False, learnable_sink=None, inner_precise=0, query_quant_mode=0, key_quant_mode=0, value_quant_mode=0, **other):
    bad = [k for k, v in other.items() if v is not None]
    if bad: raise NotImplementedError(f"FIA v2 args {bad}")
    return _fia(query, key, value, atten_mask=atten_mask, qlens=actual_seq_qlen, kvlens=actual_seq_kvlen, block_table=block_table, n=num_query_heads,
                nkv=num_key_value_heads, scale=softmax_scale, pre=pre_tokens, nxt=next_tokens, layout=input_layout, sparse=sparse_mode, block_size=block_size,
                lse_flag=return_softmax_lse, sink=learnable_sink)


emulates("npu_fused_infer_attention_score_v2")(_fia2)


@emulates("npu_fused_infer_attention_score_v2.out")
def _fia2_out(query, key, value, *, workspace=None, out, **k):
    o, l = _fia2(query, key, value, **k)
    out[0].copy_(o.view(out[0].shape))
    if out[1].shape == l.shape: out[1].copy_(l)
    return out[0], out[1]


