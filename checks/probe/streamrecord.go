package probe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// recordedStream answers for a node that is a tree of files: its file /stream holds
// lines of a NUMA node, or "total", and MB/s; "far", a NUMA node, another one and MiB;
// or "error" and its text.
func (h *Host) recordedStream() (StreamRates, error) {
	rates := StreamRates{Nodes: map[int]float64{}, Rounds: streamRounds - 1}
	data, err := h.readFile("/stream")
	if err != nil {
		return rates, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		who, what, _ := strings.Cut(lines.Text(), " ")
		if who == "error" {
			return rates, errors.New(what)
		}
		if who == "far" {
			f := StreamFar{}
			if _, err := fmt.Sscan(what, &f.Node, &f.On, &f.MiB); err != nil {
				return rates, err
			}
			rates.Far = append(rates.Far, f)
			continue
		}
		rate, err := strconv.ParseFloat(what, 64)
		if err != nil {
			return rates, err
		}
		if who == "total" {
			rates.Total = rate
		} else if node, err := strconv.Atoi(who); err == nil {
			rates.Nodes[node] = rate
		}
	}
	return rates, nil
}
