package lint

import (
	"strings"
	"testing"
	"time"
)

func TestExpandHosts(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"gpu[01-03,7],login1": "gpu01 gpu02 gpu03 gpu7 login1",
		"r[1-2]n[01-02]":      "r1n01 r1n02 r2n01 r2n02",
		"a,,a":                "a",
		"gpu[8-11]":           "gpu10 gpu11 gpu8 gpu9",
	} {
		hosts, err := expandHosts(list)
		if got := strings.Join(hosts, " "); got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", list, got, err, want)
		}
	}
	for _, list := range []string{"gpu[01-", "gpu[]", "gpu[1-999999999]", "gpu*", "gpu[a-b]", "gpu[3-1]", "a[1-1000]b[1-1000]c[1-1000]"} {
		if hosts, err := expandHosts(list); err == nil {
			t.Errorf("%s: %d hosts", list, len(hosts))
		}
	}
}

func TestFoldHosts(t *testing.T) {
	t.Parallel()
	for hosts, want := range map[string]string{
		"gpu01 gpu02 gpu03 gpu7 login1": "gpu[01-03],gpu7,login1",
		"gpu8 gpu9 gpu10 gpu12":         "gpu[8-10,12]",
		"n098 n099 n100":                "n[098-100]",
		"n008 n009 n010 n100 n11":       "n[008-010,100],n11",
		"n9 n010 n011 n10 n100":         "n[9-10],n[010-011,100]",
		"a":                             "a",
	} {
		if got := foldHosts(strings.Fields(hosts)); got != want {
			t.Errorf("%s: %s, want %s", hosts, got, want)
		}
	}
}

// Each host costs the same, however many there are.
func TestManyHosts(t *testing.T) {
	// not parallel: it counts allocations
	hosts, err := expandHosts("r[1-50000]n[1-2]")
	must(t, err)
	const most = 5 * time.Second // with a search for each host: 23 s
	begin := time.Now()
	folded := foldHosts(hosts)
	if n := strings.Count(folded, "["); n != 50000 || time.Since(begin) > most {
		t.Errorf("%d groups in %s", n, time.Since(begin))
	}
	hosts = hosts[:100]
	if n := testing.AllocsPerRun(1, func() { nearTarget("node1", hosts) }); n > 100 {
		t.Errorf("%.0f allocations for %d hosts", n, len(hosts))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
