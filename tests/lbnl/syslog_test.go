package lbnl

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// syslog is the receiver at /dev/log. It records messages in the same form as the replacement of
// logger(1).
type syslog struct {
	fd    int
	lines []string
}

// syslogMessage matches priority, time, host, tag and text of a message; time and host are
// optional.
var syslogMessage = regexp.MustCompile(
	`(?s)^<(\d+)>(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?(?:(\S+) )??([^ :]+): ?(.*)`)

var syslogLevels = [...]string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"}

// listenSyslog opens /dev/log for all users.
func listenSyslog() (*syslog, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open syslog socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "/dev/log"}); err != nil {
		return nil, fmt.Errorf("bind /dev/log: %w", err)
	}
	return &syslog{fd: fd}, unix.Chmod("/dev/log", 0o666)
}

// drain reads the waiting messages; few fit into the queue, and a full one blocks the senders.
func (l *syslog) drain() {
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(l.fd, buf, 0)
		if err != nil {
			return
		}
		l.record(strings.TrimRight(string(buf[:n]), "\n\x00"))
	}
}

func (l *syslog) record(message string) {
	m := syslogMessage.FindStringSubmatch(message)
	if m == nil {
		l.lines = append(l.lines, "syslog ? "+message)
		return
	}
	priority, _ := strconv.Atoi(m[1])
	facility := strconv.Itoa(priority >> 3)
	switch priority >> 3 {
	case 1:
		facility = "user"
	case 3:
		facility = "daemon"
	}
	for line := range strings.SplitSeq(m[4], "\n") {
		l.lines = append(l.lines, fmt.Sprintf("syslog %s.%s %s: %s", facility, syslogLevels[priority&7], m[3], line))
	}
}
