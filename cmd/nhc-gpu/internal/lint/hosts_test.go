package lint

import (
	"strings"
	"testing"
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
		"a":                             "a",
	} {
		if got := foldHosts(strings.Fields(hosts)); got != want {
			t.Errorf("%s: %s, want %s", hosts, got, want)
		}
	}
}
