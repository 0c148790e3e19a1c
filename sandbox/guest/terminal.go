//go:build linux

package guest

import (
	"encoding/binary"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openTerminal opens a pseudo-terminal of the size and modes asked for. uid owns
// its slave side, which is called name. Reads of the master have deadlines; those
// of the slave block, as programs expect.
func openTerminal(t *Terminal, uid uint32) (master *os.File, slave int, name string, err error) {
	// Fd would make the master block too: its descriptor is only lent out.
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, 0, "", err
	}
	var number uint32
	err = lend(master, func(fd int) (err error) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetUint32(fd, unix.TIOCGPTN)
		}
		return err
	})
	name = "/dev/pts/" + strconv.Itoa(int(number))
	if err == nil {
		slave, err = unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		master.Close()
		return nil, 0, "", err
	}
	if uid != 0 {
		unix.Fchown(slave, int(uid), -1)
	}
	unix.Fchmod(slave, 0o620)
	setModes(slave, t.Modes)
	setSize(master, t.Size)
	return master, slave, name, nil
}

// lend calls use with the descriptor of f, which it must not keep, and returns its
// error.
func lend(f *os.File, use func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var useErr error
	if err := c.Control(func(fd uintptr) { useErr = use(int(fd)) }); err != nil {
		return err
	}
	return useErr
}

// orUsual returns s, or 80x24 where it is 0x0. Clients without a terminal of their
// own send that, and programs cannot use it.
func (s Size) orUsual() Size {
	if s.Columns == 0 {
		s.Columns = 80
	}
	if s.Rows == 0 {
		s.Rows = 24
	}
	return s
}

// setSize sets a terminal's size.
func setSize(master *os.File, s Size) {
	s = s.orUsual()
	most := func(n uint32) uint16 { return uint16(min(n, 1<<16-1)) }
	lend(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{
			Row: most(s.Rows), Col: most(s.Columns), Xpixel: most(s.Width), Ypixel: most(s.Height),
		})
	})
}

// The opcodes of RFC 4254 section 8 and RFC 8160 on Linux.
var (
	modeChars = map[byte]int{
		1: unix.VINTR, 2: unix.VQUIT, 3: unix.VERASE, 4: unix.VKILL, 5: unix.VEOF, 6: unix.VEOL,
		7: unix.VEOL2, 8: unix.VSTART, 9: unix.VSTOP, 10: unix.VSUSP, 12: unix.VREPRINT,
		13: unix.VWERASE, 14: unix.VLNEXT, 18: unix.VDISCARD,
	}
	modeInput = map[byte]uint32{
		30: unix.IGNPAR, 31: unix.PARMRK, 32: unix.INPCK, 33: unix.ISTRIP, 34: unix.INLCR,
		35: unix.IGNCR, 36: unix.ICRNL, 37: unix.IUCLC, 38: unix.IXON, 39: unix.IXANY,
		40: unix.IXOFF, 41: unix.IMAXBEL, 42: unix.IUTF8,
	}
	modeLocal = map[byte]uint32{
		50: unix.ISIG, 51: unix.ICANON, 52: unix.XCASE, 53: unix.ECHO, 54: unix.ECHOE,
		55: unix.ECHOK, 56: unix.ECHONL, 57: unix.NOFLSH, 58: unix.TOSTOP, 59: unix.IEXTEN,
		60: unix.ECHOCTL, 61: unix.ECHOKE, 62: unix.PENDIN,
	}
	modeOutput = map[byte]uint32{
		70: unix.OPOST, 71: unix.OLCUC, 72: unix.ONLCR, 73: unix.OCRNL, 74: unix.ONOCR, 75: unix.ONLRET,
	}
	modeControl = map[byte]uint32{
		90: unix.CS7, 91: unix.CS8, 92: unix.PARENB, 93: unix.PARODD,
	}
)

// disabledChar is RFC 4254's "no such character", Linux's is 0.
const disabledChar = 255

// applyModes changes t as the encoded modes say. Opcodes that are not known are
// passed over, as long as they have an argument (RFC 4254 section 8: below 160).
func applyModes(t *unix.Termios, modes []byte) {
	for len(modes) >= 5 && modes[0] != 0 && modes[0] < 160 {
		op, arg := modes[0], binary.BigEndian.Uint32(modes[1:5])
		modes = modes[5:]
		if i, ok := modeChars[op]; ok {
			t.Cc[i] = byte(arg)
			if arg == disabledChar {
				t.Cc[i] = 0
			}
			continue
		}
		flags, bit := &t.Iflag, modeInput[op]
		switch {
		case modeLocal[op] != 0:
			flags, bit = &t.Lflag, modeLocal[op]
		case modeOutput[op] != 0:
			flags, bit = &t.Oflag, modeOutput[op]
		case modeControl[op] != 0:
			flags, bit = &t.Cflag, modeControl[op]
		}
		if arg != 0 {
			*flags |= bit
		} else if bit != unix.CS8 && bit != unix.CS7 { // sizes, not switches
			*flags &^= bit
		}
	}
}

func setModes(fd int, modes []byte) {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return
	}
	applyModes(t, modes)
	unix.IoctlSetTermios(fd, unix.TCSETS, t)
}
