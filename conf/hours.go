package conf

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// Hours are the hours of a week.
type Hours struct {
	Text   string // as written
	ranges []hours
}

// hours are minutes from midnight, on some days. A range that ends at or before its beginning goes on
// after midnight.
type hours struct {
	days     [7]bool
	from, to int
}

var (
	days     = []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"} // as time.Weekday counts
	errHours = errors.New(`want days and hours, such as "Mon-Fri 08:00-18:00" or "22:00-06:00, Sat 06:00-22:00"`)
)

// ParseHours parses ranges, separated by commas: days, which may be missing for every day, and hours
// of the node's local time.
func ParseHours(text string) (*Hours, error) {
	h := &Hours{Text: text}
	for part := range strings.SplitSeq(text, ",") {
		words := strings.Fields(part)
		r := hours{}
		switch len(words) {
		case 1:
			r.days = [7]bool{true, true, true, true, true, true, true}
		case 2:
			if !r.takeDays(words[0]) {
				return nil, errHours
			}
		default:
			return nil, errHours
		}
		from, to, _ := strings.Cut(words[len(words)-1], "-")
		begin, err := time.Parse("15:04", from)
		if err != nil {
			return nil, errHours
		}
		if to == "24:00" {
			to = "00:00"
		}
		end, err := time.Parse("15:04", to)
		if err != nil {
			return nil, errHours
		}
		r.from, r.to = minutes(begin), minutes(end)
		h.ranges = append(h.ranges, r)
	}
	return h, nil
}

func (h *Hours) String() string { return h.Text }

func minutes(t time.Time) int { return 60*t.Hour() + t.Minute() }

// takeDays reads a day or a range of days.
func (r *hours) takeDays(word string) bool {
	first, last, ok := strings.Cut(word, "-")
	if !ok {
		last = first
	}
	from, to := slices.Index(days, first), slices.Index(days, last)
	if from < 0 || to < 0 {
		return false
	}
	for day := from; ; day = (day + 1) % len(days) {
		r.days[day] = true
		if day == to {
			return true
		}
	}
}

// Has reports whether a time is within the hours; nil has every time.
func (h *Hours) Has(t time.Time) bool {
	if h == nil {
		return true
	}
	now, today := minutes(t), int(t.Weekday())
	yesterday := (today + len(days) - 1) % len(days)
	return slices.ContainsFunc(h.ranges, func(r hours) bool {
		if r.from < r.to {
			return r.days[today] && r.from <= now && now < r.to
		}
		return r.days[today] && now >= r.from || r.days[yesterday] && now < r.to
	})
}
