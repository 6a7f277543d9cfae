package match

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRange(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, host string
		yes, no    string // expressions, separated by spaces
	}{
		{"width is that of the longer end", "node01", "{node[1-10]} {node[01-5]} {node[0-99]} {node[1-09]}", "{node[0-100]} {node[00-100]} {node[9-10]}"},
		{"width of one digit", "n5", "{n[1-9]} {n[5-5]} {n[0-5]}", "{n[1-10]} {n[01-10]}"},
		{"ends the wrong way round", "node01", "{node[05-01]} {node[10-1]} {node[10-00]} {node[5-01]}", "{node[09-02]}"},
		{"leading zeros are decimal", "n010", "{n[008-011]} {n[010-010]}", "{n[008-009]}"},
		{"large numbers", "n123456789", "{n[000000000-999999999]} {n[0-123456789]} {n[123456788-123456790]}", "{n[0-123456788]}"},
		{"beyond 64 bits", "n" + strings.Repeat("9", 30), "{n[0-" + strings.Repeat("9", 30) + "]}", "{n[0-" + strings.Repeat("8", 30) + "]}"},
		{"suffix", "n05-ib", "{n[00-10]-ib} {n05-ib} {n[1,05]-ib}", "{n[00-10]-ib0} {n-[00-10]} {n[00-10].ib} {n[00-10]}"},
		{"fully qualified host", "n0012.cc2.example.org", "!{n[0000-0100]} {n[0000-0100].cc2.example.org} {n0012.cc2.example.org}", "{n[0000-0100]}"},
		{"hyphen in the host", "node-3", "{node-[1-5]}", "{node[00-05]} {node-[00-05]}"},
		{"host that is a number", "42", "{42} {4[0-9]} {0[1-2],42}", "{43}"},
		{"lists", "n3", "{n1,n3} {n[1-2],n3} {n[1-2],n[3-4]} {n3,} {n3,*}", "{n1,n2} {} {n1,}"},
		{"no part of a name", "login", "{login} {node,login} {login,node01} !{node}", "!{login} {Login} {log} {login1} {loginx,log-in}"},
		{"names with other characters", "log-in_a.b", "{log-in_a.b}", "{log-in_a} {log-in-a.b}"},
		{"lists in brackets", "n3", "{n[1-3,7]} {n[1,3]} {n[3]} {x,n[1,3],y}", "{n[1,2]} {n[03]} {n[1-2,4-9]}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := Matcher{Warn: func(text string) {
				if !strings.HasSuffix(text, ":  *") {
					t.Errorf("warning: %s", text)
				}
			}}
			for i, list := range []string{tt.yes, tt.no} {
				for expr := range strings.FieldsSeq(list) {
					got, err := m.Match(tt.host, expr)
					if want := i == 0; got != want || err != nil {
						t.Errorf("Match(%q, %q) = %v, %v; want %v", tt.host, expr, got, err, want)
					}
				}
			}
		})
	}
}

// TestRangeMalformed: the first malformed member is reported and ends the list.
func TestRangeMalformed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		host, expr string
		want       bool
		member     string // "": no warning
	}{
		{"node01", "{node*}", false, "node*"},
		{"node01", "!{node*}", true, "node*"},
		{"node01", "{1}", false, "1"},
		{"42", "{[40-45]}", false, "[40-45]"},
		{"node01", "{node[00 -05]}", false, "node[00 -05]"},
		{"node01", "{ node01 }", false, " node01 "},
		{"node01", "{,node01}", false, ""},
		{"node01", "{n?,node01}", false, "n?"},
		{"node01", "{node01,n?}", true, "none"},
		{"node01", "{n[1-2,x],node01}", false, "n[1-2"},
		{"node01", "{n[1-],node01}", false, "n[1-]"},
		{"node01", "{n[],node01}", false, "n[]"},
		{"node01", "{n[1-2]x_y,node01}", false, "n[1-2]x_y"},
		{"node01", "{n1_x,node01}", false, "n1_x"},
		{"node01", "{n.1,node01}", false, "n.1"},
	}
	for _, tt := range tests {
		t.Run(tt.expr, func(t *testing.T) {
			t.Parallel()
			var warned []string
			m := Matcher{Warn: func(text string) { warned = append(warned, text) }}
			got, err := m.Match(tt.host, tt.expr)
			if got != tt.want || err != nil {
				t.Errorf("got %v, %v; want %v", got, err, tt.want)
			}
			var want []string
			if tt.member != "none" {
				want = []string{"mcheck_range:  Range not in pdsh syntax:  " + tt.member}
			}
			if diff := cmp.Diff(want, warned); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}
