package lbnl

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// netLine returns a line of a file such as /proc/net/tcp: addresses and state as the kernel of
// a little-endian machine prints them.
func netLine(local, remote, state string, uid, inode int) string {
	return fmt.Sprintf("   0: %s %s %s 00000000:00000000 00:00000000 00000000 %5d        0 %d 1 0000000000000000 100 0 0 10 0\n",
		local, remote, state, uid, inode)
}

const (
	netHead      = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	netNobody    = "00000000:0000"
	netListen    = "0A"
	netUnixHead  = "Num       RefCount Protocol Flags    Type St Inode Path\n"
	netAnyV6     = "00000000000000000000000000000000:"
	netLocalhost = "0100007F:"
)

// netNode returns the files of a node with eight sockets in use, with some of them replaced.
func netNode(change map[string]string) map[string]string {
	files := map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/bash\nalice:x:5001:5001::/home/alice:/bin/bash\n",
		"proc/net/tcp": netHead +
			netLine(netLocalhost+"0801", netNobody, netListen, 0, 101) + // 127.0.0.1:2049
			netLine("00000000:1F90", netNobody, netListen, 5001, 102) + // 0.0.0.0:8080
			netLine(netLocalhost+"1F91", netNobody, netListen, 5001, 103) + // 127.0.0.1:8081
			netLine("0100000A:9C40", "0900000A:1AA1", "01", 5002, 104) + // 10.0.0.1:40000 -> 10.0.0.9:6817
			netLine("0100000A:9C41", "0900000A:1AA1", "06", 0, 0),
		"proc/net/tcp6": netHead + netLine(netAnyV6+"1786", netAnyV6+"0000", netListen, 0, 105), // *:6022
		"proc/net/udp":  netHead + netLine("00000000:0202", netNobody, "07", 0, 106),            // 0.0.0.0:514
		"proc/net/raw":  netHead + netLine("00000000:0001", netNobody, "07", 0, 107),
		"proc/net/unix": netUnixHead +
			"0000000000000000: 00000002 00000000 00010000 0001 01 108 /run/my.sock\n" +
			"0000000000000000: 00000002 00000000 00000000 0002 01 109 @private\n" +
			"0000000000000000: 00000002 00000000 00010000 0005 01 110 /run/udev/control\n",
	}
	for pid, name := range map[int]string{101: "nfsd-x", 102: "webd", 103: "webd2", 106: "rsyslogd", 108: "unixd"} {
		files[fmt.Sprintf("proc/%d/comm", pid)] = name + "\n"
	}
	maps.Copy(files, change)
	return files
}

// netLinks returns the open files of the processes: each has the socket of its number.
func netLinks() map[string]string {
	links := map[string]string{"proc/101/fd/0": "/dev/null"}
	for _, pid := range []int{101, 102, 103, 106, 108} {
		links[fmt.Sprintf("proc/%d/fd/3", pid)] = fmt.Sprintf("socket:[%d]", pid)
	}
	return links
}

// onNet returns a scenario on the node of netNode.
func onNet(name string, words []string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{Name: name, Words: words, Files: netNode(nil), Links: netLinks(), Want: want}
}

// acting adds a shell for the actions to a scenario, and the files that they create.
func acting(s checktest.Scenario, left string) checktest.Scenario {
	s.Acts, s.Tools, s.Leaves = true, checktest.Of("bash"), map[string]string{"act": left}
	return s
}

// socketMissing returns the failure of a check that found no socket.
func socketMissing(device, text string) checks.Finding {
	return checks.Finding{
		Code: "net.socket.missing", Severity: checks.Fail, Device: checks.Device{Kind: "socket", Name: device}, Want: "at least 1", Got: "0",
		Message: "check_net_socket:  No " + text}
}

// socketFound returns the failure of a check that must find none.
func socketFound(device string, n int, text string) checks.Finding {
	return checks.Finding{
		Code: "net.socket.found", Severity: checks.Fail, Device: checks.Device{Kind: "socket", Name: device}, Want: "0", Got: fmt.Sprint(n), Status: min(n, 255),
		Message: fmt.Sprintf("check_net_socket:  %d %s", n, text)}
}

func TestNetSocket(t *testing.T) { checktest.Run(t, "check_net_socket") }

var _ = checktest.Table("check_net_socket", func(string) []checktest.Scenario {
	criteria := map[string]any{
		"label": "web", "protocol": "tcp", "local": "*:8080", "remote": "0.0.0.0:*", "state": "LISTEN", "type": "", "user": "alice",
		"daemon": "web*", "all": true, "nonfatal": true, "absent": true, "missing_action": "", "found_action": "",
	}
	return []checktest.Scenario{
		onNet("protocol and state", checktest.Of("-p", "tcp", "-s", "LISTEN")).OrTable(map[string]any{"protocol": "tcp", "state": "LISTEN"}),
		onNet("local address", checktest.Of("-l", "127.0.0.1:2049")),
		onNet("IPv6 for all addresses", checktest.Of("-p", "tcp", "-l", "*:6022", "-u", "root")),
		onNet("remote address", checktest.Of("-r", "10.0.0.9:6817", "-s", "ESTABLISHED")),
		onNet("datagrams", checktest.Of("-p", "udp", "-s", "UNCONN", "-l", "*:514", "-u", "root", "-d", "rsyslog*")),
		onNet("raw", checktest.Of("-p", "raw", "-l", "0.0.0.0:1", "-d", "unknown")),
		onNet("path", checktest.Of("-p", "unix", "-t", "STREAM", "-l", "/run/my.sock", "-d", "unixd")),
		onNet("abstract name", checktest.Of("-t", "DGRAM", "-l", "@private")),
		onNet("sequential packets", checktest.Of("-p", "u_seq", "-l", "/run/udev/control", "-s", "LISTEN")),
		onNet("daemon", checktest.Of("-d", "/^web/")),
		onNet("a closed socket has no owner", checktest.Of("-s", "TIME-WAIT", "-u", "!root")),
		onNet("an owner without account", checktest.Of("-s", "ESTABLISHED", "-u", "!*?*")),
		onNet("empty words too many", checktest.Of("-l", "*:8080", "")),
		onNet("bundled", checktest.Of("-!ap", "tcp", "-l", "*:9999")),
		onNet("rightly absent", checktest.Of("-!", "-l", "*:9999")),
		onNet("all found", checktest.Of("-a", "-p", "tcp", "-s", "LISTEN")),

		onNet("no such port", checktest.Of("-l", "*:9999"),
			socketMissing("*:9999", `matching sockets found ((localaddr =~ "*:9999"))`)),
		onNet("every criterion", checktest.Of("-n", "x", "-p", "tcp", "-l", "*:8080", "-r", "*", "-s", "LISTEN", "-t", "STREAM", "-u", "alice", "-d", "webd"),
			socketMissing("x", `x sockets found ((protocol =~ "tcp") && (localaddr =~ "*:8080") && (remoteaddr =~ "*") && (state =~ "LISTEN") `+
				`&& (type =~ "STREAM") && (user =~ "alice") && (daemon =~ "webd"))`)),
		onNet("no uid for a name", checktest.Of("-u", "5001", "-l", "*:8080"),
			socketMissing("*:8080", `matching sockets found ((localaddr =~ "*:8080") && (user =~ "5001"))`)),
		onNet("another daemon", checktest.Of("-d", "sshd", "-l", "*:8080"),
			socketMissing("sshd", `matching sockets found ((localaddr =~ "*:8080") && (daemon =~ "sshd"))`)),
		onNet("all, none", checktest.Of("-a", "-0", "-l", "*:9999"),
			nonfatal(socketMissing("*:9999", `matching sockets found ((localaddr =~ "*:9999") (all) (non-fatal))`))),
		onNet("found", checktest.Of("-!", "-l", "*:2049"),
			socketFound("*:2049", 1, `matching socket(s) found ((localaddr =~ "*:2049") (NEGATED))`)),
		onNet("of root", checktest.Of("-!", "-u", "root", "-p", "udp"),
			socketFound("udp", 1, `matching socket(s) found ((protocol =~ "udp") && (user =~ "root") (NEGATED))`)),
		onNet("without -a the first counts", checktest.Of("-!", "-u", "alice"),
			socketFound("", 1, `matching socket(s) found ((user =~ "alice") (NEGATED))`)),
		onNet("two of eight", checktest.Of("-!", "-a", "-p", "tcp", "-u", "alice"),
			socketFound("tcp", 2, `matching socket(s) found ((protocol =~ "tcp") && (user =~ "alice") (all) (NEGATED))`)),
		onNet("found, all options", checktest.Of("-!", "-a", "-0", "-n", "web", "-p", "tcp", "-l", "*:8080", "-r", "0.0.0.0:*", "-s", "LISTEN", "-u", "alice", "-d", "web*"),
			nonfatal(socketFound("web", 1, `web socket(s) found ((protocol =~ "tcp") && (localaddr =~ "*:8080") && (remoteaddr =~ "0.0.0.0:*") && `+
				`(state =~ "LISTEN") && (user =~ "alice") && (daemon =~ "web*") (all) (non-fatal) (NEGATED))`))).OrTable(criteria),
		onNet("more than an exit status can say", checktest.Of("-!", "-a", "-p", "udp"),
			socketFound("udp", 256, `matching socket(s) found ((protocol =~ "udp") (all) (NEGATED))`)).
			Changed(map[string]string{"proc/net/udp": netHead + strings.Repeat(netLine("00000000:0202", netNobody, "07", 0, 106), 256)}),
		onNet("no socket at all", checktest.Of("-p", "udp"), socketMissing("udp", `matching sockets found ((protocol =~ "udp"))`)).
			Changed(map[string]string{"proc/net/udp": netHead}),

		onNet("netstat: IPv6", checktest.Of("-p", "tcp6", "-s", "LISTEN", "-l", ":::6022", "-r", ":::*", "-u", "root")),
		onNet("netstat: a match string", checktest.Of("-p", "/^tcp6?$/", "-l", "/:2049$/", "-d", "nfsd*")),
		onNet("netstat: TCP without a connection", checktest.Of("-p", "tcp", "-s", "TIME_WAIT", "-r", "10.0.0.9:6817")),
		onNet("netstat: a path", checktest.Of("-p", "unix", "-t", "STREAM", "-s", "LISTENING", "-l", "/run/my.sock", "-d", "unixd")),
		onNet("netstat: sequential packets", checktest.Of("-p", "unix", "-t", "SEQPACKET", "-l", "/run/udev/control")),
		onNet("netstat: no IPv6 socket on an IPv4 address", checktest.Of("-p", "tcp6", "-l", "127.0.0.1:2049"),
			socketMissing("127.0.0.1:2049", `matching sockets found ((protocol =~ "tcp6") && (localaddr =~ "127.0.0.1:2049"))`)),
		onNet("netstat: forbidden", checktest.Of("-!", "-s", "TIME_WAIT"), socketFound("", 1, `matching socket(s) found ((state =~ "TIME_WAIT") (NEGATED))`)),
		onNet("ss: an IPv6 socket is tcp", checktest.Of("-!", "-p", "!tcp", "-l", "*:6022")),

		acting(onNet("action if missing", checktest.Of("-e", "echo miss > {root}/act", "-E", "echo hit > {root}/act", "-l", "*:9999"),
			socketMissing("*:9999", `matching sockets found ((localaddr =~ "*:9999"))`)), "miss\n"),
		acting(onNet("action if found", checktest.Of("-!", "-e", "echo miss > {root}/act", "-E", "echo hit > {root}/act", "-l", "*:2049"),
			socketFound("*:2049", 1, `matching socket(s) found ((localaddr =~ "*:2049") (NEGATED))`)), "hit\n"),
		acting(onNet("action if all are found", checktest.Of("-a", "-E", "echo hit > {root}/act", "-l", "*:2049")), "hit\n"),
		acting(onNet("action if rightly absent", checktest.Of("-!", "-e", "echo miss > {root}/act", "-l", "*:9999")), "miss\n"),
		acting(onNet("no action at the first match", checktest.Of("-E", "echo hit > {root}/act", "-l", "*:2049")), ""),

		onNet("no criteria", checktest.Of("-a", "-n", "x"), checktest.UsageFinding("check_net_socket:  No match criteria supplied.", "")),
		onNet("words too many", checktest.Of("-p", "tcp", "LISTEN", "x"),
			checktest.UsageFinding(`check_net_socket:  Syntax error:  Unsupported additional arguments supplied ("LISTEN x").`, "")),
		onNet("unknown option", checktest.Of("-p", "tcp", "-z"),
			checktest.UsageFinding("check_net_socket:  Invalid option:  -z", "one of -n -p -l -r -s -t -u -d -! -a -0 -e -E")),
		onNet("option without its argument", checktest.Of("-p"), checktest.UsageFinding("check_net_socket:  Option -p requires an argument.", "")),
		onNet("bad range", checktest.Of("-p", "udp", "-d", "{1}"),
			checks.Finding{Code: "config.match", Severity: checks.Warn, Message: "mcheck_range:  Range not in pdsh syntax:  1", Remedy: checks.FixConfig},
			socketMissing("{1}", `matching sockets found ((protocol =~ "udp") && (daemon =~ "{1}"))`)),

		{Name: "no IPv6 here", Words: checktest.Of("-!", "-l", "[[]*"), Files: map[string]string{"proc/net/tcp": netHead}},
		{Name: "no /proc", Words: checktest.Of("-p", "tcp"), Broken: true, Want: []checks.Finding{{
			Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc/net/tcp: no such file or directory"}}},
		onNet("garbage", checktest.Of("-p", "tcp", "-l", "*:9999"), checks.Finding{
			Code: "probe.unreadable", Severity: checks.Unknown, Message: `parse /proc/net/tcp: not a socket: "\xff\n"`}).
			Changed(map[string]string{"proc/net/tcp": netHead + "\xff\n"}).OnBroken(),
	}
})
