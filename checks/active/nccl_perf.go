package active

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ncclPerf is the output of a program of nccl-tests: a table, and two lines of a summary after
// it. The columns of the table have changed over the years. Up to 2.12:
//
//	#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
//	#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
//	     1048576        262144     float     sum    58.20   18.02   31.53  5e-07    58.00   18.08   31.64  7e-07
//
// From 2.13 on there is a column root, and #wrong counts elements instead of the error; later
// versions can have columns of single iterations at the end. In all versions both halves begin
// with the time, and a cell of the first columns can be empty: so a row is parsed from its end.
type ncclPerf struct {
	rows  []ncclPerfRow
	wrong int // "Out of bounds values", -1: the line is missing
}

// ncclPerfRow is a size, with both halves of its row: out of place and in place.
type ncclPerfRow struct {
	size   int64
	halves []ncclPerfHalf
}

type ncclPerfHalf struct {
	time, algbw, busbw float64 // us, GB/s, GB/s
}

// busbw returns the row's bus bandwidth, GB/s: the mean of its halves, as in the summary.
func (r ncclPerfRow) busbw() float64 {
	sum := 0.0
	for _, h := range r.halves {
		sum += h.busbw
	}
	return sum / float64(max(len(r.halves), 1))
}

// largest returns the row of the largest size.
func (p *ncclPerf) largest() (row ncclPerfRow, ok bool) {
	for _, r := range p.rows {
		if !ok || r.size > row.size {
			row, ok = r, true
		}
	}
	return row, ok
}

// parseNCCLPerf parses the output. It skips unknown lines: NCCL prints messages between the rows.
func parseNCCLPerf(text string) (*ncclPerf, error) {
	p := &ncclPerf{wrong: -1}
	var halves []int // number of cells, by half
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		switch rest, isRemark := strings.CutPrefix(line, "#"); {
		case isRemark && strings.Contains(rest, "busbw"):
			halves = ncclPerfHeader(rest)
		case isRemark:
			p.summary(rest)
		default:
			if row, ok := ncclPerfCells(line, halves); ok {
				p.rows = append(p.rows, row)
			}
		}
	}
	if len(p.rows) == 0 {
		return p, fmt.Errorf("output without a table of nccl-tests: %.200q", text)
	}
	return p, nil
}

// ncclPerfHeader counts the cells of both halves, and of the columns after them.
func ncclPerfHeader(line string) (cells []int) {
	words := strings.Fields(line)
	for i, w := range words {
		if w == "time" || w == "cputime" {
			cells = append(cells, len(words)-i)
		}
	}
	if len(cells) == 2 {
		cells[0] -= cells[1]
	}
	if slices.Contains(words, "timestamp") { // a date and a time
		cells[len(cells)-1]++
	}
	return cells
}

func ncclPerfCells(line string, cells []int) (row ncclPerfRow, ok bool) {
	words := strings.Fields(line)
	all := 0
	for _, n := range cells {
		all += n
	}
	if all == 0 || len(words) < all+2 {
		return row, false
	}
	size, err := strconv.ParseInt(words[0], 10, 64)
	if err != nil {
		return row, false
	}
	row.size = size
	at := len(words) - all
	for _, n := range cells {
		var h ncclPerfHalf
		for i, to := range []*float64{&h.time, &h.algbw, &h.busbw} {
			if *to, err = strconv.ParseFloat(words[at+i], 64); err != nil {
				return row, false
			}
		}
		row.halves = append(row.halves, h)
		at += n
	}
	return row, true
}

// summary parses "Out of bounds values : 3 FAILED".
func (p *ncclPerf) summary(remark string) {
	what, value, _ := strings.Cut(remark, ":")
	if words := strings.Fields(value); strings.TrimSpace(what) == "Out of bounds values" && len(words) > 0 {
		if n, err := strconv.Atoi(words[0]); err == nil {
			p.wrong = n
		}
	}
}
