package eas

import (
	"strings"
	"testing"
)

func TestErrors(t *testing.T) {
	t.Parallel()
	items := []string{"gemm_flops", "all_reduce", "all_reduce_2"}
	for _, tc := range []struct{ text, want string }{
		{"", "line 1, column 1: no valid JSON: unexpected end of JSON input"},
		{"[]", "line 1, column 2: want an object, got array"},
		{"{}", `no section "aimaster" with sanity_check or runtime_check`},
		{"{\n \"aimaster\": {,}}", "line 2, column 15: no valid JSON: invalid character ',' looking for beginning of object key string"},
		{`{"aimaster": 3}`, "line 1, column 14: aimaster: want an object, got 3"},
		{`{"aimaster": {"image": {}}}`, "line 1, column 14: aimaster: no sanity_check and no runtime_check"},
		{`{"aimaster": {"sanity_chek": {}}}`, `line 1, column 15: unknown key "sanity_chek": want sanity_check`},
		{"{\"aimaster\": {\n \"sanity_check\": {\n  \"micro_benchmarks\": \"gemm_flops, all_reduce_3\"}}}", `line 3, column 36: sanity_check: unknown name "all_reduce_3": want all_reduce`},
		{`{"sanity_check": {"micro_benchmarks": ["gemm_flops"]}}`, `line 1, column 19: sanity_check.micro_benchmarks: want a string with names separated by commas, got ["gemm_flops"]`},
		{`{"sanity_check": {"micro_benchmarks": "gemm_flops", "timeout": -1}}`, `line 1, column 53: sanity_check.timeout: want a number of minutes above 0, got -1`},
		{`{"sanity_check": {"micro_benchmarks": "gemm_flops", "time": 1}}`, `line 1, column 53: sanity_check: unknown key "time": want timeout`},
		{`{"sanity_check": {"fail_action": "retain"}}`, `line 1, column 18: sanity_check: no micro_benchmarks`},
		{`{"runtime_check": {"micro_benchmarks": "gemm_flops"}}`, `line 1, column 41: runtime_check: unknown name "gemm_flops": want c4d`},
	} {
		_, err := Parse([]byte(tc.text), items)
		if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%s:\n got %v\nwant %s", tc.text, err, tc.want)
		}
	}
	// A whole description of a service.
	file, err := Parse([]byte(`{"metadata": {"name": "a"}, "aimaster": {"sanity_check": {"micro_benchmarks": "gemm_flops,gemm_flops"}}, "cloud": {}}`), items)
	if err != nil || len(file.Sanity.Benchmarks) != 1 {
		t.Errorf("got %+v, %v", file, err)
	}
}
