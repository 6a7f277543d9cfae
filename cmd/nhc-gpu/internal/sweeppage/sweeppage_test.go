package sweeppage

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/tests/schema"
)

var examples = map[string]func() *sweep.Report{
	"healthy": healthy, "one-suspect": oneSuspect, "all-kinds": allKinds, "large": large, "empty": empty, "interrupted": interrupted, "compared": compared, "picture": picture,
}

// golden compares a text with a file; NHC_GPU_WRITE=texts writes it.
func golden(t *testing.T, name, text string) {
	t.Helper()
	file := "testdata/" + name + ".txt"
	if os.Getenv("NHC_GPU_WRITE") == "texts" {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s; NHC_GPU_WRITE=texts go test ./cmd/nhc-gpu/internal/sweeppage writes it (-want +got):\n%s", file, diff)
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	for name, report := range examples {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b strings.Builder
			if err := Print(&b, report(), 80); err != nil {
				t.Fatal(err)
			}
			golden(t, name, b.String())
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			if n := strings.Count(b.String(), "\n"); n > 250 {
				t.Errorf("%d lines, want a page", n)
			}
		})
	}
}

// docs/sweep.md shows the report of the cluster in its picture.
func TestDocument(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := Print(&b, picture(), 80); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../../docs/sweep.md")
	if err != nil {
		t.Fatal(err)
	}
	want := "    " + strings.ReplaceAll(strings.TrimSpace(b.String()), "\n", "\n    ")
	if want = strings.ReplaceAll(want, "    \n", "\n"); !strings.Contains(string(page), want) {
		t.Errorf("docs/sweep.md does not show\n%s", want)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestWriteErrors(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"print": Print(failing{}, healthy(), 0), "page": HTML(failing{}, healthy()), "status": PrintStatus(failing{}, nil)} {
		if err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// expand is the reverse of Hostlist for names with one bracket at most.
func expand(list string) (names []string) {
	depth, from := 0, 0
	words := []string{}
	for i, c := range list {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth == 0:
			words, from = append(words, list[from:i]), i+1
		}
	}
	for _, word := range append(words, list[from:]) {
		head, rest, many := strings.Cut(word, "[")
		if !many {
			names = append(names, word)
			continue
		}
		ranges, tail, _ := strings.Cut(rest, "]")
		for r := range strings.SplitSeq(ranges, ",") {
			low, high, ok := strings.Cut(r, "-")
			if !ok {
				high = low
			}
			a, _ := strconv.Atoi(low)
			b, _ := strconv.Atoi(high)
			for n := a; n <= b; n++ {
				names = append(names, fmt.Sprintf("%s%0*d%s", head, len(low), n, tail))
			}
		}
	}
	return names
}

func TestHostlist(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ names, want string }{
		{"", ""}, {"login", "login"}, {"gpu1", "gpu1"}, {"gpu2 gpu1 gpu1", "gpu[1-2]"}, {"gpu9 gpu10 gpu11", "gpu[9-11]"}, {"gpu099 gpu100 gpu101", "gpu[099-101]"},
		{"gpu1 gpu01 gpu02", "gpu[1,01-02]"}, {"gpu001 gpu002 gpu003 gpu020 login1", "gpu[001-003,020],login1"}, {"r1n1 r1n2 r2n1", "r1n[1-2],r2n1"}, {"n1-ib n2-ib n3-mgmt", "n[1-2]-ib,n3-mgmt"},
		{"n12345678901 n12345678902", "n12345678901,n12345678902"}, {"a b", "a,b"}, {"gpu8 gpu9 gpu010", "gpu[8-9,010]"},
	} {
		names := strings.Fields(tt.names)
		got := Hostlist(names)
		if got != tt.want {
			t.Errorf("Hostlist(%s) = %q, want %q", tt.names, got, tt.want)
		}
		slices.Sort(names)
		if back := slices.Sorted(slices.Values(expand(got))); len(names) > 0 && !slices.Equal(back, slices.Compact(names)) {
			t.Errorf("%s is %v, want %v", got, back, names)
		}
	}
}

func TestFew(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 3000 {
		names = append(names, fmt.Sprintf("gpu%04d", 2*i))
	}
	for _, most := range []int{10, 80, 400} {
		got := few(names, most)
		list, more, ok := strings.Cut(got, " and ")
		rest, err := strconv.Atoi(strings.ReplaceAll(strings.TrimSuffix(more, " more"), ",", ""))
		if !ok || err != nil || len(list) > max(most, len("gpu0000")) || len(expand(list))+rest != len(names) {
			t.Errorf("at most %d: %q", most, got)
		}
	}
	if got := few(names[:2], 80); got != "gpu[0000,0002]" {
		t.Error(got)
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 391.4: "391", 99.97: "100", 92.04: "92.0", 9.999: "10.0", 1.25: "1.25", 0.0312: "0.031", 0.00042: "0.000420", -6.25: "-6.25"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-time.Second: "0 s", 41 * time.Second: "41 s", 119 * time.Second: "119 s", 14*time.Minute + 20*time.Second: "14 min", 59*time.Minute + 50*time.Second: "60 min", 65 * time.Minute: "1 h 05 min", 26 * time.Hour: "26 h 00 min"} {
		if got := checks.Lasted(d); got != want {
			t.Errorf("Lasted(%v) = %s, want %s", d, got, want)
		}
	}
	for c, want := range map[float64]string{1: "100 %", 0.99995: "over 99.9 %", 0.9959: "99.5 %", 0.88: "88 %"} {
		if got := certainty(c); got != want {
			t.Errorf("certainty(%v) = %s, want %s", c, got, want)
		}
	}
}

// Each code of a sweep has words for a drain reason, and advice; and no other code has.
func TestCodes(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, c := range sweep.Codes() {
		known[c.Code] = true
		if checks.CodeRows().Words[c.Code] == "" {
			t.Errorf("%s has no words in codes.toml", c.Code)
		}
		if checks.WhatToDo(c.Code) == "" {
			t.Errorf("%s has no advice in sweepcodes.go", c.Code)
		}
	}
	for _, code := range slices.Concat(checks.Codes(), slices.Collect(maps.Keys(checks.CodeRows().Words))) {
		if strings.HasPrefix(code, "sweep.") && !known[code] {
			t.Errorf("%s is no code of a sweep", code)
		}
	}
}

// Nodes whose own history lacks the finding are named, with the reason.
func TestUnwritten(t *testing.T) {
	t.Parallel()
	node := func(name, history string) sweep.NodeReport {
		return sweep.NodeReport{Node: sweep.Node{Name: name}, History: history}
	}
	r := &sweep.Report{Nodes: []sweep.NodeReport{
		node("gpu001", sweep.Written), node("gpu002", ""), node("gpu003", "node gpu003: its rank has ended"), node("gpu004", "node gpu004: its rank has ended"), node("gpu005", "no space left"),
	}}
	want := []string{
		"The finding is not in the node's own history, only in this report: gpu[003-004] (its rank has ended).",
		"The finding is not in the node's own history, only in this report: gpu005 (no space left).",
	}
	if got := notes(r); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Notes and remarks are both printed.
func TestRemarks(t *testing.T) {
	t.Parallel()
	r := &sweep.Report{Stages: []sweep.StageReport{{Fleet: []sweep.Distribution{
		{Stage: sweep.StageReach, Kind: sweep.KindConnect, Plane: "eth0", Remark: "gpu003 is elsewhere"},
		{Stage: sweep.StageTCP, Kind: sweep.KindStream, Plane: "eth1", Note: "all are slow"},
	}}}}
	want := []string{"reach connect eth0: gpu003 is elsewhere", "tcp stream eth1: all are slow"}
	if got := notes(r); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]Line{
		"start the ranks": {Doing: "start the ranks"},
		"tcp: round 3":    {Stage: sweep.StageTCP, Round: 3},
		"tcp: round 3 of about 12, 2 suspects, 16 tests running, about 4 min left": {Stage: sweep.StageTCP, Round: 3, Rounds: 12, Running: 16, Suspects: 2, Left: 4 * time.Minute},
		"node: round 1 of about 1, 1 test running":                                 {Stage: sweep.StageNode, Round: 1, Rounds: 1, Running: 1},
		"tcp: round 5, about 30 s left":                                            {Stage: sweep.StageTCP, Round: 5, Rounds: 4, Left: 30 * time.Second},
	} {
		if got := l.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if len(want) > 79 {
			t.Errorf("%q is wider than a terminal", want)
		}
	}
}

func TestPrintStatus(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, list := range [][]Summary{nil, {
		{ID: "20261120-2130", State: Done, Began: began.Add(-48 * time.Hour), Nodes: 498, Suspects: 3, Job: "47001", File: "/var/lib/nhc-gpu/sweep/20261120-2130/report.json"},
		{ID: "20261121-2130", State: Interrupted, Why: "preempted", Began: began.Add(-24 * time.Hour), Nodes: 5000, Suspects: 1},
		{ID: "20261122-2130", State: Running, Began: began, Nodes: 32, Job: "48213", Stage: "tcp", Left: 4 * time.Minute},
	}} {
		if err := PrintStatus(&b, list); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "status", b.String())
}

func TestEvents(t *testing.T) {
	t.Parallel()
	r := allKinds()
	list := Events(r)
	var got []string
	for _, e := range list {
		if err := schema.Check(e.Line()); err != nil {
			t.Error(err)
		}
		for _, x := range e.Results {
			got = append(got, strings.TrimSpace(fmt.Sprint(e.Node, " ", e.Verdict, " ", e.Exit, " ", x.Code, " ", x.Device.Kind, " ", x.Device.Name)))
		}
	}
	if diff := cmp.Diff([]string{
		"gpu005 fail 1 sweep.rdma.slow port mlx5_3:1", "gpu008 fail 1 sweep.nccl.wrong gpu gpu3", "gpu011 fail 1 sweep.nccl.hang", "gpu017 fail 1 sweep.tcp.slow netdev eth1", "gpu022 fail 1 sweep.reach.latency netdev eth1", "gpu023 unknown 0 sweep.rdma.unable port mlx5_2:1",
		"gpu030 warn 0 sweep.rdma.slow port mlx5_0:1", "gpu041 warn 0 sweep.rdma.slow port mlx5_0:1", "gpu044 warn 0 sweep.tcp.flaky netdev eth0",
	}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	e := list[3]
	if x := e.Results[0]; x.Want != "91.9 Gb/s" || x.Got != "41.4 Gb/s" || x.Remedy != checks.CheckCable || x.Line != "nhc-gpu sweep --idle" || e.Context != "sweep" || e.Mode != "observe" || e.Job != "48213" || !e.Time.Equal(r.Ended) {
		t.Errorf("%+v\n%+v", e, x)
	}
	if got, want := Drain(e), "sweep slow TCP eth1 [sweep.tcp.slow]"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
	if got := Drain(list[6]); got != "" {
		t.Errorf("a pair is drained: %q", got)
	}
	if list := Events(healthy()); len(list) != 0 {
		t.Errorf("%d events of a healthy cluster", len(list))
	}
}

// The examples are what the schema of the report describes.
func TestExamplesHaveTheSchema(t *testing.T) {
	t.Parallel()
	for name, report := range examples {
		if name == "large" {
			continue
		}
		data, err := json.Marshal(report())
		if err == nil {
			err = schema.CheckSweep(data)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every code of a sweep has advice and words.
func TestAdvice(t *testing.T) {
	t.Parallel()
	count := 0
	for code := range checks.CodeRows().Words {
		if !strings.HasPrefix(code, "sweep.") {
			continue
		}
		if count++; checks.WhatToDo(code) == "" || !checks.KnownCode(code) {
			t.Errorf("no advice on %s", code)
		}
	}
	if count < 20 {
		t.Errorf("only %d codes", count)
	}
}

func pageOf(t *testing.T, r *sweep.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestHTML(t *testing.T) {
	t.Parallel()
	for name, report := range examples {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := report()
			text := pageOf(t, r)
			if strings.Contains(text, "<script") || strings.Contains(text, "http") {
				t.Error("the page has a script or an address")
			}
			if !closed(t, text) {
				t.Error("an element is not closed")
			}
			if len(text) > 2<<20 {
				t.Errorf("%d bytes, want at most 2 MiB", len(text))
			}
			if n := strings.Count(text, `<article class="card`); n != min(len(r.Suspects), mostCards) {
				t.Errorf("%d cards of %d suspects", n, len(r.Suspects))
			}
			if !strings.Contains(text, "<p class=\"verdict\">"+upper(verdict(r))) {
				t.Error("no verdict")
			}
			if strings.Contains(text, "%!") || strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
				t.Error("a number or a format is wrong")
			}
			if name != "large" && text != pageOf(t, r) {
				t.Error("the same report gives another page")
			}
		})
	}
}

// closed reports whether all elements of a page are closed.
func closed(t *testing.T, text string) bool {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	depth := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return depth == 0
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token.(type) {
		case xml.StartElement:
			depth++
		case xml.EndElement:
			depth--
		}
	}
}

// A slow node is a row and a column of the matrix, one that receives slowly a column alone, and no other
// cell has a colour of its own.
func TestMatrix(t *testing.T) {
	t.Parallel()
	r := (&model{nodes: 6, rails: 1, perLeaf: 6, seed: 9, faults: []fault{slowCable("gpu002"), {node: "gpu004", plane: "mlx5_0:1", kinds: []sweep.Kind{sweep.KindWrite}, factor: 0.6}, {node: "gpu005", kinds: []sweep.Kind{sweep.KindNCCL}}}}).report()
	c := newCluster(r)
	slow := func(kind sweep.Kind, plane string) (list []string) {
		for _, s := range c.series {
			if s.kind != kind {
				continue
			}
			for from, row := range s.grid(6, func(i int) int { return i }, plane) {
				for to := range row {
					if class := row[to].shade(); class != "h0" && class != "" {
						list = append(list, fmt.Sprint(from+1, ">", to+1, " ", class))
					}
				}
			}
		}
		return list
	}
	if diff := cmp.Diff([]string{"1>2 h4", "3>2 h4", "4>2 h4", "5>2 h4", "6>2 h4"}, slow(sweep.KindStream, "eth1")); diff != "" {
		t.Errorf("one direction\n%s", diff)
	}
	if got := slow(sweep.KindStream, "eth0"); len(got) != 0 {
		t.Errorf("the other plane: %v", got)
	}
	if got := slow(sweep.KindWrite, ""); len(got) != 10 || got[0] != "1>4 h3" {
		t.Errorf("both directions: %v", got)
	}
	if got := slow(sweep.KindNCCL, ""); len(got) != 10 || got[0] != "1>5 hx" {
		t.Errorf("failed: %v", got)
	}
	for _, s := range c.series {
		for i, x := range s.byNode(6, "") {
			bad := s.kind == sweep.KindStream && i == 1 || s.kind == sweep.KindWrite && i == 3 || s.kind == sweep.KindNCCL && i == 4
			if class := x.shade(); (class == "h0" || class == "h1") == bad && s.kind != sweep.KindStream {
				t.Errorf("%s: gpu%03d is %s", s.kind, i+1, class)
			}
		}
		if s.kind == sweep.KindStream {
			if x := s.byNode(6, "eth1"); x[1].shade() != "h4" || x[0].shade() == "h4" {
				t.Errorf("one direction of a node: %+v", x)
			}
		}
	}
}
