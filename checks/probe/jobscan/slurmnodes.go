package jobscan

import (
	"iter"
	"net"
	"path"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// maxNodesOfLine bounds the nodes of one line of slurm.conf; a longer list is malformed.
const maxNodesOfLine = 1 << 17

// SlurmNodes finds the names of this host in slurm.conf (named if it is set, from SLURM_CONF): the
// nodes with the host's NodeHostname, or else its NodeAddr. A node with the host's own name is the
// only result. There are several if several slurmd share the host, and none if slurm.conf has other
// names. It may block as [ReadGPUs] does.
func SlurmNodes(h *probe.Host, named, host string) ([]string, error) {
	file, data, err := findSlurmConf(h, named)
	if err != nil {
		return nil, err
	}
	short, _, _ := strings.Cut(host, ".")
	isHost := func(name string) bool { return strings.EqualFold(name, host) || strings.EqualFold(name, short) }
	var byName, byAddr []string
	s := &slurmFiles{host: h, dir: path.Dir(file), left: maxSlurmFiles, visit: func(_ string, line []slurmPair) {
		if line[0].key != "nodename" || strings.EqualFold(line[0].value, "DEFAULT") {
			return
		}
		names := line[0].value
		hostnames, apart := findValue(line, "nodehostname")
		if !apart {
			for _, n := range []string{host, short} {
				if hasHost(names, n) && !slices.Contains(byName, n) {
					byName = append(byName, n)
				}
			}
		} else {
			byName = append(byName, matchPairs(names, hostnames, isHost)...)
		}
		if addrs, is := findValue(line, "nodeaddr"); is && !apart {
			byAddr = append(byAddr, matchPairs(names, addrs, func(a string) bool { return isHost(a) || isOwnAddress(a) })...)
		}
	}}
	if err := s.parse(file, data); err != nil {
		return nil, err
	}
	all := byName
	if len(all) == 0 {
		all = byAddr
	}
	if slices.Contains(all, short) {
		all = []string{short}
	}
	return all, nil
}

// matchPairs returns the names whose counterpart in another list matches. A list with one entry is for
// all names.
func matchPairs(names, others string, is func(string) bool) (found []string) {
	var at []int
	i := 0
	for other := range expandHostlist(others) {
		if is(other) {
			at = append(at, i)
		}
		if i++; i > maxNodesOfLine {
			return nil
		}
	}
	if len(at) == 0 {
		return nil
	}
	all := i == 1
	i = 0
	for name := range expandHostlist(names) {
		if all || slices.Contains(at, i) {
			found = append(found, name)
		}
		if i++; !all && i > at[len(at)-1] || i > maxNodesOfLine {
			break
		}
	}
	return found
}

// isOwnAddress reports whether text is an address of this host that others can reach.
func isOwnAddress(text string) bool {
	ip := net.ParseIP(text)
	if ip == nil || ip.IsLoopback() || ip.IsUnspecified() {
		return false
	}
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// expandHostlist yields the names of a list in Slurm's form, "gpu[01-08,11],login1", in order.
func expandHostlist(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for pattern := range splitHostlist(list) {
			if !eachHost("", pattern, yield) {
				return
			}
		}
	}
}

// eachHost yields the names that match a pattern, until yield returns false.
func eachHost(before, pattern string, yield func(string) bool) bool {
	literal, rest, ranged := strings.Cut(pattern, "[")
	set, rest, closed := strings.Cut(rest, "]")
	if !ranged || !closed {
		return yield(before + pattern)
	}
	for part := range strings.SplitSeq(set, ",") {
		low, high, is := strings.Cut(part, "-")
		if !is {
			high = low
		}
		if probe.NotNumber(low) || probe.NotNumber(high) || len(high) > 9 || len(low) > 9 {
			continue
		}
		for number := low; ; number = increment(number) {
			if lessNumber(strings.TrimLeft(high, "0"), strings.TrimLeft(number, "0")) {
				break
			}
			if !eachHost(before+literal+number, rest, yield) {
				return false
			}
		}
	}
	return true
}

// increment returns the next number, with the same width.
func increment(digits string) string {
	b := []byte(digits)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < '9' {
			b[i]++
			return string(b)
		}
		b[i] = '0'
	}
	return "1" + string(b)
}
