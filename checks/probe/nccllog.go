package probe

import (
	"bytes"
	"io"
	"slices"
	"strconv"
	"strings"
)

// NCCLLog is what NCCL has written of itself.
type NCCLLog struct {
	Algorithms []string // of collectives: ring, tree, nvls ..., each once
	Networks   []string // by which it talks to other nodes, or between GPUs that have no other way: IB, Socket
	Warnings   []string
	End        int64 // how much there is, bytes: where the next part begins
}

// maxNCCLLog bounds what is read of the log at a time, bytes.
const maxNCCLLog = 8 << 20

// Log reads NCCL's log from an offset on.
func (n *NCCL) Log(from int64) NCCLLog {
	if n.log == nil {
		return NCCLLog{}
	}
	data, _ := io.ReadAll(io.NewSectionReader(n.log, from, maxNCCLLog)) // of what cannot be read nothing is told
	l := parseNCCLLog(data)
	l.End = from + int64(len(data))
	return l
}

// How releases name the algorithm at NCCL_DEBUG=INFO, subsystem TUNING. 2.18 to 2.22
// give its number, later ones its name; in those before it cannot be told:
//
//	8589934592 Bytes -> Algo 4 proto 2 time 41943.121094
//	AllReduce: 8589934592 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
var (
	ncclAlgorithm = lazily(`Bytes -> Algo (\w+) proto`)
	ncclNetwork   = lazily(`Using network (.+)$`)
)

// ncclAlgorithms are NCCL_ALGO_... of nccl_tuner.h, by number. 2.7 to 2.13 had
// CollNet at 2; none of those writes the line.
var ncclAlgorithms = []string{"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}

func parseNCCLLog(data []byte) (l NCCLLog) {
	add := func(list *[]string, word string) {
		if !slices.Contains(*list, word) {
			*list = append(*list, word)
		}
	}
	for line := range bytes.Lines(data) {
		text := oneLine(strings.TrimSpace(string(line)))
		if _, warning, ok := strings.Cut(text, "NCCL WARN "); ok {
			add(&l.Warnings, warning)
		}
		if m := ncclAlgorithm().FindStringSubmatch(text); m != nil {
			add(&l.Algorithms, algorithmName(m[1]))
		}
		if m := ncclNetwork().FindStringSubmatch(text); m != nil {
			add(&l.Networks, strings.TrimSpace(m[1]))
		}
	}
	return l
}

// algorithmName is a number or a name of an algorithm as our tables have it.
func algorithmName(word string) string {
	if n, err := strconv.Atoi(word); err == nil {
		if n >= 0 && n < len(ncclAlgorithms) {
			return ncclAlgorithms[n]
		}
		return "algorithm " + word
	}
	switch word = strings.ToLower(word); word {
	case "collnetdirect":
		return "collnet_direct"
	case "collnetchain":
		return "collnet_chain"
	case "nvlstree":
		return "nvls_tree"
	}
	return word
}
