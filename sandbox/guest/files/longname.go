package files

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// longName returns the line that `ls -l` has for name, which clients show as it
// is: draft-ietf-secsh-filexfer-02, section 7.
func (r *responder) longName(name string, st *unix.Stat_t) string {
	return fmt.Sprintf("%s %3d %-8s %-8s %8d %s %s", modeText(st.Mode), st.Nlink,
		r.users.orNumber(st.Uid), r.groups.orNumber(st.Gid),
		st.Size, dateText(time.Unix(st.Mtim.Unix()), time.Now()), name)
}

// dateText has the year in place of the time for what is half a year old or, by
// the clock here, not yet there.
func dateText(t, now time.Time) string {
	if t.After(now) || t.Before(now.AddDate(0, -6, 0)) {
		return t.Format("Jan _2  2006")
	}
	return t.Format("Jan _2 15:04")
}

// modeText returns a mode as strmode(3) does.
func modeText(mode uint32) string {
	kinds := map[uint32]byte{
		unix.S_IFREG: '-', unix.S_IFDIR: 'd', unix.S_IFLNK: 'l', unix.S_IFIFO: 'p',
		unix.S_IFSOCK: 's', unix.S_IFCHR: 'c', unix.S_IFBLK: 'b',
	}
	text := []byte("?rwxrwxrwx")
	if kind, ok := kinds[mode&unix.S_IFMT]; ok {
		text[0] = kind
	}
	for i := range 9 {
		if mode&(1<<(8-i)) == 0 {
			text[1+i] = '-'
		}
	}
	for _, special := range []struct {
		bit        uint32
		at         int
		with, sans byte // execute permission
	}{
		{unix.S_ISUID, 3, 's', 'S'}, {unix.S_ISGID, 6, 's', 'S'}, {unix.S_ISVTX, 9, 't', 'T'},
	} {
		if mode&special.bit == 0 {
			continue
		}
		if text[special.at] == 'x' {
			text[special.at] = special.with
		} else {
			text[special.at] = special.sans
		}
	}
	return string(text)
}
