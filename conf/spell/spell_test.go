package spell

import "testing"

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"plan", "platforms", "check_gpu_ecc", "check_gpu_xid", "lint"}
	for name, want := range map[string]string{
		"paln": "plan", "lnit": "lint", "plattforms": "platforms", "Plan": "plan", "gpu_ecc": "check_gpu_ecc", "gpu_ec": "check_gpu_ecc", "check_gpu_ec": "check_gpu_ecc",
		"check_gpu_xdi": "check_gpu_xid", "x": "", "": "", "topology": "", "plat": "platforms", "pl": "", "check_gpu": "", "check_fs_mount": "",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	keys := []string{"link", "[[check]]", "[policy.NAME]"}
	for key, want := range map[string]string{"limit": "link, [[check]], [policy.NAME]", "check": "[[check]]", "checks": "[[check]]", "polciy": "[policy.NAME]", "": "link, [[check]], [policy.NAME]"} {
		if got := Want(key, keys); got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
	for pair, want := range map[[2]string]int{
		{"", ""}: 0, {"abc", ""}: 3, {"", "abc"}: 3, {"abcd", "acbd"}: 1, {"ABC", "abc"}: 0, {"abc", "abd"}: 1, {"abc", "bcd"}: 2,
	} {
		if got := Typos(pair[0], pair[1]); got != want {
			t.Errorf("%q: %d, want %d", pair, got, want)
		}
	}
}
