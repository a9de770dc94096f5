"""The mutants: what is changed, and the tests that are to fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """fusec with ``old`` replaced by ``new``, once, in a module's source.

    tests: files, or tests in them, that are run until the first failure, in this order.
    """

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]


_COMPOSITES = "fusec.passes.canonicalize.composites"
_SDPA = "fusec.passes.canonicalize.attention"
_LOWER_ATTENTION = "fusec.passes.families.attention.cpu"

MUTANTS: tuple[Mutant, ...] = (
    # What a library function means
    Mutant(
        "softmax_without_max",
        _COMPOSITES,
        'return r.emit("sub", x, largest, hint="shifted"), largest',
        'return r.emit("copy", x, hint="shifted"), largest',
        (
            "tests/passes/canonicalize/test_composites.py::test_softmax",
            "tests/test_opdb.py",
        ),
    ),
    Mutant(
        "tanh_for_erf",
        _COMPOSITES,
        'if r.op.attributes.approximate == "none":',
        'if r.op.attributes.approximate == "never":',
        (
            "tests/passes/canonicalize/test_composites.py",
            "tests/test_opdb.py",
        ),
    ),
    Mutant(
        "variance_of_the_population",
        _COMPOSITES,
        "return r.constant(max(float(count) - correction, 0.0), x)",
        "return r.constant(float(count), x)",
        (
            "tests/passes/canonicalize/test_composites.py",
            "tests/test_opdb.py",
        ),
    ),
    Mutant(
        "norm_without_eps",
        _COMPOSITES,
        '_binary(r, "add", r.keep(square, x, norm.axes), norm.eps)',
        "r.keep(square, x, norm.axes)",
        (
            "tests/passes/canonicalize/test_composites.py",
            "tests/test_opdb.py",
        ),
    ),
    Mutant(
        "attention_without_scale",
        _SDPA,
        'scores = r.emit("mul", products, r.constant(scale, products), hint="scores")',
        "scores = products",
        ("tests/passes/canonicalize/test_attention.py",),
    ),
    Mutant(
        "causal_mask_off_by_one",
        _SDPA,
        'r.emit("le", j, i, hint="causal")',
        'r.emit("lt", j, i, hint="causal")',
        ("tests/passes/canonicalize/test_attention.py",),
    ),
    Mutant(
        "mask_turned_round",
        _SDPA,
        'return r.emit("select", mask, scores, r.constant(_MINUS_INFINITY, scores), hint="masked")',
        'return r.emit("select", mask, r.constant(_MINUS_INFINITY, scores), scores, hint="masked")',
        ("tests/passes/canonicalize/test_attention.py",),
    ),
    Mutant(
        "permuted_keys_as_if_not",
        "fusec.passes.canonicalize.contractions",
        "return source, tuple(names[a] for a in batch), tuple(names[a] for a in contract)",
        "return source, batch, contract",
        ("tests/passes/canonicalize/test_contractions.py",),
    ),
    Mutant(
        "remainder_of_the_dividends_sign",
        "fusec.frontend.torch_elementwise",
        'return e.cast(e.emit("select", off, e.emit("add", rest, b), rest), dtype)',
        "return e.cast(rest, dtype)",
        (
            "tests/frontend/test_torch_values.py",
            "tests/test_opdb.py",
        ),
    ),
    # The passes
    Mutant(
        "differences_merged_whichever_way",
        "fusec.ir.ops.elementwise",
        '_binary("sub", np.subtract, NUMBER)',
        '_binary("sub", np.subtract, NUMBER, commutative=True)',
        ("tests/passes/test_cse.py",),
    ),
    Mutant(
        "rounding_before_a_jump_dropped",
        "fusec.passes.precision",
        "rounded = [_rounded(r, v) if _is_unrounded(r, v) else v for v in r.operands]",
        "rounded = list(r.operands)",
        ("tests/passes/test_precision.py",),
    ),
    Mutant(
        "halves_added_in_halves",
        "fusec.passes.precision",
        "if x.type.dtype not in _HALF or r.op.attributes.dtype is not None:",
        "if True:",
        ("tests/passes/test_precision.py",),
    ),
    Mutant(
        "wrong_output_strides",
        "fusec.passes.outputs",
        "wanted = port.strides if port.strides is not None else contiguous_strides(shape)",
        "wanted = contiguous_strides(shape)",
        ("tests/passes/test_outputs.py", "tests/test_opdb.py"),
    ),
    Mutant(
        "outputs_alike_share_memory",
        "fusec.passes.outputs",
        'made.definition.kind != "write" and root not in given:',
        'made.definition.kind != "write":',
        ("tests/passes/test_outputs.py::test_equal_results_are_separate_memory",),
    ),
    Mutant(
        "a_result_lies_in_an_argument",
        "fusec.passes.outputs",
        "elif is_memory and made is not None and",
        "elif is_memory and made is None or made is not None and is_memory and",
        ("tests/passes/test_outputs.py", "tests/passes/test_aliases.py"),
    ),
    Mutant(
        "a_view_of_a_changed_input_lies_in_what_is_copied_there",
        "fusec.passes.lower.program",
        "return outputs[whose.index] if changed is None else",
        "return outputs[whose.index] if True else",
        ("tests/passes/test_aliases.py",),
    ),
    Mutant(
        "what_an_index_does_not_find_is_no_error",
        "fusec.passes.dce",
        " and not is_effect(op)",
        "",
        ("tests/frontend/test_torch_errors.py",),
    ),
    # The fusions
    Mutant(
        "attention_hides_a_value_that_is_read",
        "fusec.passes.fuse.attention",
        "        if others:\n",
        "        if False:\n",
        ("tests/passes/fuse/test_attention.py::test_weights_with_a_second_reader",),
    ),
    Mutant(
        "attention_hides_an_output",
        "fusec.passes.fuse.attention",
        "        if partition.escapes(op):\n",
        "        if False:\n",
        (
            "tests/passes/fuse/test_attention.py::test_scores_that_are_also_an_output",
            "tests/passes/fuse/test_attention.py::test_weights_that_are_also_an_output",
        ),
    ),
    Mutant(
        "attention_of_anothers_rows",
        "fusec.passes.fuse.attention",
        "return index == (*point[:axis], *point[axis + 1 :])",
        "return True",
        ("tests/passes/fuse/test_attention.py::test_a_maximum_of_the_wrong_row_is_no_softmax",),
    ),
    Mutant(
        "rows_without_a_finite_score_divide_by_nothing",
        "fusec.tile.attention",
        "if guarded else total",
        "if guarded and total is None else total",
        ("tests/passes/families/attention/test_cpu.py::test_rows_without_a_finite_score",),
    ),
    Mutant(
        "parts_of_the_keys_overlap",
        _LOWER_ATTENTION,
        "return start, minimum(span.stop, add(start, share))",
        "return start, span.stop",
        ("tests/passes/families/attention/test_cpu.py::test_parts_of_the_keys",),
    ),
    Mutant(
        "attention_keeps_old_sums",
        "fusec.passes.lower.online",
        'put(total, Apply("mul", (total, scale), d)),',
        "put(total, total),",
        (
            "tests/passes/fuse/test_attention.py::test_changes_of_the_scores",
            "tests/passes/lower/test_mask.py",
        ),
    ),
    Mutant(
        "attention_keeps_old_values",
        "fusec.passes.lower.online",
        'put(sums, Apply("mul", (sums, scale), d), values)',
        "put(sums, sums, values)",
        (
            "tests/passes/fuse/test_attention.py::test_changes_of_the_scores",
            "tests/passes/lower/test_mask.py",
        ),
    ),
    Mutant(
        "attention_skips_a_tile_too_many",
        "fusec.passes.lower.mask",
        "    stop = extent if stop is None else stop\n",
        "    stop = extent if stop is None else minimum(stop, extent - tile)\n",
        ("tests/passes/lower/test_mask.py",),
    ),
    Mutant(
        "products_share_the_first_weight",
        "fusec.passes.families.gemm.cpu",
        "rights = [self._right(op) for op in self.ops]",
        "rights = [self._right(self.ops[0]) for op in self.ops]",
        ("tests/passes/fuse/test_fuse_gemm.py::test_products_of_one_operand_are_one_kernel",),
    ),
    Mutant(
        "products_of_other_shapes_join",
        "fusec.passes.fuse.fuse",
        "        and other.result.type == op.result.type\n",
        "        and True\n",
        ("tests/passes/fuse/test_fuse_gemm.py::test_products_of_different_shapes_stay_apart",),
    ),
    Mutant(
        "product_forgets_its_last_tile",
        "fusec.passes.families.gemm.cpu",
        "steps = ceildiv(extents.k, s.tile_k)",
        "steps = floordiv(extents.k, s.tile_k)",
        ("tests/test_torch_compile.py::test_a_long_product",),
    ),
    Mutant(
        "epilogue_hides_an_output",
        "fusec.passes.fuse.partition",
        "            if value in self.outputs:\n                return True\n",
        "            if value in self.outputs:\n                return False\n",
        (
            "tests/passes/fuse/test_fuse_gemm.py::test_an_operand_that_is_an_output_is_made_once_before_the_product",
            "tests/passes/fuse/test_attention.py::test_scores_that_are_also_an_output",
        ),
    ),
    Mutant(
        "rows_of_other_axes_join",
        "fusec.passes.fuse.fuse",
        "if op.operands[0].type.shape != group.domain or op.attributes.axes != group.reduced:",
        "if op.operands[0].type.shape != group.domain:",
        (
            "tests/passes/fuse/test_fuse_rows.py::test_reductions_over_different_axes_are_two_kernels",
            "tests/passes/fuse/test_fuse_rows.py",
        ),
    ),
    Mutant(
        "rows_forget_the_last_ones",
        "fusec.passes.families.row.cpu",
        "        tasks = ceildiv(rows, task)\n",
        "        tasks = maximum(floordiv(rows, task), 1)\n",
        (
            "tests/passes/families/row/test_cpu.py",
            "tests/passes/fuse/test_fuse_rows.py",
        ),
    ),
    Mutant(
        "windows_in_another_order",
        "fusec.passes.canonicalize.windows",
        "wanted = [place[k] for k in names if k in place]",
        "wanted = [place[k] for k in sorted(names) if k in place]",
        ("tests/passes/canonicalize/test_windows.py",),
    ),
    Mutant(
        "windows_that_are_summed_over",
        "fusec.passes.canonicalize.windows",
        "        if axis in contract:\n",
        "        if False:\n",
        ("tests/passes/canonicalize/test_windows.py",),
    ),
    Mutant(
        "repeated_batch_taken_for_free",
        "fusec.passes.canonicalize.windows",
        "return all((own[k] == 1) if k in axes else (own[k] == wide[k]) for k in range(len(wide)))",
        "return all((own[k] == 1) for k in axes)",
        ("tests/passes/canonicalize/test_windows.py",),
    ),
    # The kernels
    Mutant(
        "maximum_drops_nan",
        "fusec.codegen.tvm.vector",
        'chosen = tirx.Select(self.compare("eq", a, a).node, chosen, a.node)',
        "pass",
        (
            "tests/codegen/tvm/test_reduce.py::test_nan_and_infinity_propagate",
            "tests/codegen/tvm/test_operations.py",
        ),
    ),
    Mutant(
        "writes_seen_too_late",
        "fusec.frontend.torch_memory",
        "        if self._value is None or self._version != self.memory.version:\n",
        "        if self._value is None:\n",
        ("tests/frontend/test_torch_memory.py",),
    ),
    # Aliasing, state, guards
    Mutant(
        "a_view_of_a_written_input_shows_the_old_one",
        "fusec.passes.aliases",
        "elif root in inputs and inputs[root] not in changed:",
        "elif root in inputs:",
        ("tests/passes/test_aliases.py", "tests/frontend/test_torch_aliases.py", "tests/frontend/test_torch_memory.py"),
    ),
    Mutant(
        "views_of_results_are_copies",
        "fusec.passes.aliases",
        "        if root in owners:\n            attributes",
        "        if False:\n            attributes",
        ("tests/passes/test_aliases.py", "tests/frontend/test_torch_aliases.py"),
    ),
    Mutant(
        "views_of_arguments_are_copies",
        "fusec.passes.aliases",
        "elif root in inputs and inputs[root] not in changed:",
        "elif False:",
        ("tests/passes/test_aliases.py", "tests/frontend/test_torch_aliases.py"),
    ),
    Mutant(
        "aliases_whatever_their_strides",
        "fusec.passes.aliases",
        "if view is not None and same_layout(value.type.shape, view.strides, wanted):",
        "if view is not None:",
        ("tests/passes/test_aliases.py", "tests/frontend/test_torch_aliases.py", "tests/campaigns/test_views.py"),
    ),
    Mutant(
        "a_joined_array_is_no_memory_of_its_own",
        "fusec.passes.aliases",
        'if made is not None and made.definition.kind != "view":',
        'if made is not None and made.definition.kind not in ("view", "data"):',
        ("tests/passes/test_aliases.py", "tests/frontend/test_torch_aliases.py"),
    ),
    Mutant(
        "read_only_arrays_come_back_writeable",
        "fusec.frontend.numpy_returns",
        '        if self.is_read_only and library == "numpy":',
        "        if False:",
        ("tests/frontend/test_numpy_returns.py",),
    ),
    Mutant(
        "one_array_twice_is_two",
        "fusec.frontend.numpy_returns",
        "            if id(x) not in known:\n",
        "            if True:\n",
        (
            "tests/frontend/test_numpy_returns.py",
            "tests/frontend/test_numpy_capture.py",
            "tests/frontend/test_numpy.py",
        ),
    ),
    Mutant(
        "two_views_of_made_memory_are_apart",
        "fusec.frontend.numpy_returns",
        "if len(self._views[id(buffer)]) > 1 or spread or backwards:",
        "if spread or backwards:",
        (
            "tests/frontend/test_numpy_returns.py",
            "tests/frontend/test_numpy_capture.py",
            "tests/frontend/test_numpy_random.py",
        ),
    ),
    Mutant(
        "arguments_that_overlap_may_be_written",
        "fusec.frontend.numpy_returns",
        "if shares and np.may_share_memory(buffer.array, other.array):",
        "if False:",
        (
            "tests/frontend/test_numpy_returns.py",
            "tests/frontend/test_numpy_capture.py",
            "tests/frontend/test_numpy.py",
            "tests/test_api_random_writes.py",
        ),
    ),
    Mutant(
        "a_constant_is_given_away",
        "fusec.frontend.numpy_returns",
        "            return _copy_of(self.constant, owners)\n",
        "            return self.constant\n",
        (
            "tests/frontend/test_numpy_returns.py",
            "tests/frontend/test_numpy_capture.py",
            "tests/frontend/test_numpy.py",
        ),
    ),
    Mutant(
        "reading_flat_is_a_view",
        "fusec.frontend.numpy_flat",
        "return found if found.is_scalar else copy(found.tracer, found)",
        "return found",
        ("tests/frontend/test_numpy_flat.py",),
    ),
    Mutant(
        "writes_to_flat_of_other_orders_are_lost",
        "fusec.frontend.numpy_flat",
        "            index.write(trace, array, line.reshape(array.meta.shape))",
        "            pass",
        ("tests/frontend/test_numpy_flat.py",),
    ),
    Mutant(
        "writes_over_what_is_read",
        "fusec.frontend.torch_rehearsal",
        "    if any(not same_layout(w, r) and _overlap(w, r) for w, r in shared):",
        "    if False:",
        (
            "tests/frontend/test_torch_errors.py",
            "tests/frontend/test_torch_memory.py",
            "tests/frontend/test_torch_aliases.py",
        ),
    ),
    Mutant(
        "dtypes_that_eager_refuses",
        "fusec.frontend.torch_rehearsal",
        "        raise of_library(type(refusal)(str(refusal)))",
        "        return",
        ("tests/frontend/test_torch_errors.py",),
    ),
    Mutant(
        "an_error_is_dropped_with_its_result",
        "fusec.ir.raising",
        "return isinstance(op.attributes, ExternAttributes) and op.attributes.target != _INTERPRETED",
        "return False",
        ("tests/passes/test_dce.py", "tests/frontend/test_torch_errors.py"),
    ),
    Mutant(
        "an_ordered_dict_is_asked",
        "fusec.frontend.raw",
        "return [(key, dict.__getitem__(value, key)) for key in OrderedDict.__iter__(value)]",
        "return list(value.items())",
        ("tests/frontend/test_held.py",),
    ),
    Mutant(
        "slots_are_not_held",
        "fusec.frontend.raw",
        "            found[slot] = slot.__get__(value)",
        "            slot.__get__(value)",
        ("tests/frontend/test_held.py", "tests/frontend/test_side_effects.py", "tests/frontend/test_environment.py"),
    ),
    Mutant(
        "lists_are_not_put_back",
        "fusec.frontend.raw",
        "        list.__setitem__(value, slice(None), values)\n",
        "        pass\n",
        ("tests/frontend/test_held.py", "tests/frontend/test_side_effects.py"),
    ),
    Mutant(
        "globals_may_change",
        "fusec.frontend.side_effects",
        "                if not self._equal(namespace.get(name, MISSING), before[name]):",
        "                if False:",
        ("tests/frontend/test_side_effects.py",),
    ),
    Mutant(
        "outer_variables_may_change",
        "fusec.frontend.side_effects",
        "            if not self._equal(_content(cell), before):",
        "            if False:",
        ("tests/frontend/test_side_effects.py",),
    ),
    Mutant(
        "random_numbers_may_be_drawn",
        "fusec.frontend.side_effects",
        "        return dumps(self._read()) != self._text",
        "        return False",
        ("tests/frontend/test_side_effects.py", "tests/frontend/test_numpy.py"),
    ),
    Mutant(
        "arguments_lists_may_change",
        "fusec.frontend.side_effects",
        "        if self._contents() != self._before:",
        "        if False:",
        ("tests/frontend/test_side_effects.py", "tests/frontend/test_results.py", "tests/runtime/test_dispatch.py"),
    ),
    Mutant(
        "a_failed_run_leaves_its_changes",
        "fusec.frontend.environment",
        "            self._before.take_all_back()",
        "            pass",
        ("tests/frontend/test_environment.py", "tests/frontend/test_side_effects.py", "tests/frontend/test_held.py"),
    ),
    Mutant(
        "refused_calls_are_tried_for_ever",
        "fusec.runtime.refusals",
        "        return known.reason\n",
        '        return ""\n',
        ("tests/runtime/test_refusals.py",),
    ),
    Mutant(
        "a_scalar_s_type_does_not_count",
        "fusec.frontend.guards",
        "(type({{v}}) is not {kind} or {differs})",
        "({differs})",
        ("tests/frontend/test_environment.py", "tests/runtime/test_dispatch.py"),
    ),
    Mutant(
        "minus_zero_is_zero",
        "fusec.frontend.guards",
        'differs = f"{{v}} != {known}" if value else f"repr({{v}}) != {repr(value)!r}"',
        'differs = f"{{v}} != {known}"',
        (
            "tests/frontend/test_environment.py",
            "tests/runtime/test_dispatch.py",
            "tests/frontend/test_torch_capture.py",
        ),
    ),
    Mutant(
        "a_dict_s_order_does_not_count",
        "fusec.frontend.guards",
        'test += f" or {listed} != {self._bind(list(held))}"',
        'test += f" or set({listed}) != {self._bind(set(held))}"',
        ("tests/frontend/test_torch_capture.py",),
    ),
    Mutant(
        "a_module_s_mode_does_not_count",
        "fusec.frontend.guards",
        'f"{{v}} is not {module.training}"',
        '"False"',
        ("tests/frontend/test_torch_capture.py", "tests/frontend/test_environment.py", "tests/test_api_modules.py"),
    ),
    Mutant(
        "hooks_are_not_seen",
        "fusec.frontend.guards",
        'f"list({{v}}.values()) != {self._bind(held)}" if held else "{v}"',
        '"False"',
        (
            "tests/frontend/test_torch_library_models.py",
            "tests/frontend/test_torch_capture.py",
            "tests/test_api_modules.py",
        ),
    ),
    Mutant(
        "a_replaced_layer_is_not_seen",
        "fusec.frontend.guards",
        '            self._visit(f"{held_children}[{name!r}]", child, f"{path}.{name}")',
        "            pass",
        ("tests/frontend/test_torch_capture.py", "tests/test_api_modules.py"),
    ),
    Mutant(
        "an_array_s_contents_do_not_count",
        "fusec.frontend.guards",
        'test = f"not {self._bind(same_array)}({{v}}, {self._bind(copy)})"',
        'test = "False"',
        ("tests/frontend/test_environment.py", "tests/frontend/test_numpy_capture.py"),
    ),
    Mutant(
        "defaults_may_be_replaced",
        "fusec.frontend.guards",
        '_FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")',
        '_FUNCTION_PARTS = ("__code__", "__kwdefaults__", "__closure__")',
        ("tests/frontend/test_environment.py", "tests/frontend/test_function_fields.py"),
    ),
    Mutant(
        "settings_of_a_library_s_model_do_not_count",
        "fusec.frontend.guards",
        'test = f"not {self._bind(same_settings)}({{v}}, {self._bind(known)})"',
        'test = "False"',
        ("tests/frontend/test_torch_library_models.py",),
    ),
    Mutant(
        "weights_kept_of_another_address",
        "fusec.runtime.packing",
        "            if known is None or not known.watch.same(sources):",
        "            if known is None:",
        ("tests/test_api_weight_writes.py", "tests/test_loading_weights.py"),
    ),
    # What only GPUs' kernels have
    Mutant(
        "search_drops_nan",
        "fusec.passes.searches",
        'found = r.emit("logical_or", found, r.emit("isnan", x))',
        "pass",
        ("tests/passes/test_searches.py",),
    ),
    Mutant(
        "split_forgets_the_rest",
        "fusec.passes.split",
        "    if whole < n:\n",
        "    if False:\n",
        ("tests/passes/test_split.py",),
    ),
    Mutant(
        "online_sum_drops_a_factor",
        "fusec.passes.families.row.online",
        "found = _exponentials(anchor, a, (*factors, (op.name, b)), producers, needs)",
        "found = _exponentials(anchor, a, factors, producers, needs)",
        ("tests/passes/families/row/test_wide.py",),
    ),
    Mutant(
        "parts_joined_without_their_maxima",
        "fusec.passes.lower.join",
        "power = (exp2_of if parts.in_log2 else exp_of)(Load(parts.peak, index), Load(shift, at))",
        "power = Const(1.0, d)",
        ("tests/passes/families/attention/test_gpu.py::test_parts_are_joined_by_their_maxima",),
    ),
    Mutant(
        "heads_share_others_keys",
        "fusec.passes.families.attention.queries",
        "return all(one not in symbols_in(reindex(element, apart)) for element in (e.key, e.value))",
        "return True",
        ("tests/passes/families/attention/test_gpu.py",),
    ),
    Mutant(
        "plain_product_reads_past_its_depth",
        "fusec.passes.families.gemm.tiles",
        "limit = None if extent % (tile * together) == 0 else sub(extent, first)",
        "limit = None",
        ("tests/passes/families/gemm/test_gpu.py::test_a_depth_that_is_no_multiple_of_the_tile",),
    ),
    Mutant(
        "library_attention_without_its_mask",
        "fusec.passes.families.attention.library",
        "    if conditions and not causal:\n",
        "    if False:\n",
        ("tests/passes/families/attention/test_library.py",),
    ),
    # Around the kernels
    Mutant(
        "places_not_checked",
        "fusec.passes.indices",
        "case GatherAttributes(axis=axis) if 0 not in",
        'case GatherAttributes(axis=axis) if op.name == "gather" and 0 not in',
        ("tests/passes/test_indices.py",),
    ),
    Mutant(
        "a_token_s_place_not_checked",
        "fusec.passes.indices",
        "case UpdateAttributes(axis=int() as axis):",
        "case UpdateAttributes(axis=str() as axis):",
        ("tests/runtime/test_in_place.py::test_an_index_out_of_range_is_an_error",),
    ),
    Mutant(
        "a_token_s_place_forgotten",
        "fusec.passes.lower.frame",
        "Move(buffer, self.inliner.at(made.operands[1], ()), buffer.strides[made.attributes.axis])",
        "Move(buffer, self.inliner.at(made.operands[1], ()), buffer.strides[-1])",
        ("tests/passes/test_writes.py",),
    ),
    Mutant(
        "extents_fitted_to_two_samples",
        "fusec.frontend.generalise",
        "if all(evaluate(candidate, at) == v for at, v in zip(self.extents, values, strict=True)):",
        "if True:",
        ("tests/test_api_dims.py", "tests/test_api_dynamic.py"),
    ),
    Mutant(
        "equal_extents_not_checked",
        "fusec.runtime.dynamic",
        'tests += [f"{place} == {spell(extent)}" for extent, place in places if place not in first.values()]',
        "tests += []",
        ("tests/test_api_dynamic.py::test_equal_extents_share_a_symbol_and_are_checked",),
    ),
    Mutant(
        "weights_packed_once_and_for_all",
        "fusec.runtime.packing",
        "if watch is not None and watch.same(sources):",
        "if watch is not None:",
        ("tests/runtime/test_executable.py", "tests/test_api_torch.py"),
    ),
    Mutant(
        "places_written_are_not_checked",
        "fusec.frontend.torch_data",
        'e.reshape(e.emit("gather", places, flat, attributes=GatherAttributes(0)), once)',
        "e.reshape(flat, once)",
        ("tests/frontend/test_torch_training.py::test_a_place_out_of_range_is_an_error",),
    ),
    Mutant(
        "dropout_without_scale",
        "fusec.frontend.torch_random",
        "bernoulli_(1 - p).div_(1 - p)",
        "bernoulli_(1 - p)",
        ("tests/frontend/test_torch_training.py",),
    ),
)
