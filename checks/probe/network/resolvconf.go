package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// ResolvConf is /etc/resolv.conf as the C library interprets it (resolv.conf(5)).
type ResolvConf struct {
	Servers []string // the first three
	Search  []string
	NDots   int      // a name with at least this number of dots is tried as it is first
	Bad     []string // name servers that are not addresses: they are never queried
}

const resolvConf = "/etc/resolv.conf"

// ReadResolvConf reads the file. The error is [io/fs.ErrNotExist] if it is missing.
func ReadResolvConf(h *probe.Host) (ResolvConf, error) {
	return probe.Once(h, "resolv.conf", func() (ResolvConf, error) {
		data, err := h.ReadFile(resolvConf)
		return parseResolvConf(data), err
	})
}

const (
	maxServers = 3  // MAXNS of the C library
	maxNDots   = 15 // RES_MAXNDOTS
)

func parseResolvConf(data []byte) ResolvConf {
	c := ResolvConf{NDots: 1}
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		if len(f) < 2 || f[0][0] == '#' || f[0][0] == ';' {
			continue
		}
		switch f[0] {
		case "nameserver":
			if _, err := netip.ParseAddr(f[1]); err != nil {
				c.Bad = append(c.Bad, f[1])
			} else if len(c.Servers) < maxServers {
				c.Servers = append(c.Servers, f[1])
			}
		case "search", "domain": // the last one holds
			c.Search = f[1:]
		case "options":
			for _, o := range f[1:] {
				if text, ok := strings.CutPrefix(o, "ndots:"); ok {
					if n, err := strconv.Atoi(text); err == nil && n >= 0 {
						c.NDots = min(n, maxNDots)
					}
				}
			}
		}
	}
	return c
}

// Candidates returns the full names to try for a name, in order.
func (c ResolvConf) Candidates(name string) []string {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	var list []string
	for _, s := range c.Search {
		if s = strings.TrimSuffix(s, "."); s != "" {
			list = append(list, name+"."+s+".")
		}
	}
	if strings.Count(name, ".") >= c.NDots {
		return append([]string{name + "."}, list...)
	}
	return append(list, name+".")
}

// recordedDNS is a directory of a recorded node, with a file for each name server.
const recordedDNS = "/recorded/dns"

// AskNameServer queries one of the node's name servers. Below another root it reads a file instead:
// recorded/dns/SERVER has a line for each name and type, "NAME A SECONDS CODE ANSWERS". * matches
// any name or type. The code "refused" means that no process listens on the port, "garbage" means
// an invalid DNS message. A query without a line gets no answer.
func AskNameServer(ctx context.Context, h *probe.Host, server, name string, kind uint16) (DNSReply, time.Duration, error) {
	if !h.Recorded() {
		return AskDNS(ctx, net.JoinHostPort(server, "53"), name, kind)
	}
	data, err := h.ReadFile(recordedDNS + "/" + server)
	if err != nil {
		return DNSReply{}, 0, err
	}
	return findRecordedReply(data, name, kind)
}

// ErrNotRecorded means that the answer of a recorded node's name server is unknown.
var ErrNotRecorded = errors.New("not recorded")

func findRecordedReply(data []byte, name string, kind uint16) (r DNSReply, took time.Duration, err error) {
	word := map[uint16]string{DNSTypeA: "A", DNSTypeNS: "NS", DNSTypeAAAA: "AAAA"}[kind]
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		if len(f) < 5 || f[0] != "*" && !strings.EqualFold(f[0], name) || f[1] != "*" && f[1] != word {
			continue
		}
		seconds, err := strconv.ParseFloat(f[2], 64)
		answers, bad := strconv.Atoi(f[4])
		if err != nil || bad != nil || !(seconds >= 0 && seconds < 60) {
			return r, 0, fmt.Errorf("%w: %q", ErrNotRecorded, line)
		}
		took = time.Duration(seconds * float64(time.Second))
		switch f[3] {
		case "refused":
			return r, took, unix.ECONNREFUSED
		case "garbage":
			return r, took, ErrBadReply
		}
		code, err := strconv.Atoi(f[3])
		if err != nil {
			return r, 0, fmt.Errorf("%w: %q", ErrNotRecorded, line)
		}
		return DNSReply{Code: code, Answers: answers}, took, nil
	}
	return r, 0, ErrNoReply
}
