package daemon

import (
	"context"
	"log/slog"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// A notifier tells systemd how the process does (sd_notify), if systemd wants to know.
type notifier struct{ log *slog.Logger }

// tell sends lines such as READY=1.
func (n notifier) tell(lines ...string) {
	if _, err := sd.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		n.log.Warn("systemd not told", "err", err)
	}
}

func (n notifier) ready() { n.tell(sd.SdNotifyReady, "STATUS=serving") }

// reloading is to be followed by ready.
func (n notifier) reloading() {
	n.tell(sd.SdNotifyReloading, sd.SdNotifyMonotonicUsec(), "STATUS=reading the settings")
}

func (n notifier) stopping() {
	n.tell(sd.SdNotifyStopping, "STATUS=waiting for sessions to end")
}

// watchdog tells systemd, as often as it wants, that the process is alive, as long as
// alive says so, until ctx ends. Whatever hangs for longer is restarted.
func (n notifier) watchdog(ctx context.Context, alive func(context.Context) error) {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		n.log.Warn("systemd's watchdog", "err", err)
	}
	if every == 0 {
		return
	}
	tick := time.NewTicker(every / 3)
	defer tick.Stop()
	for {
		if err := alive(ctx); err == nil {
			n.tell(sd.SdNotifyWatchdog)
		} else if ctx.Err() == nil {
			n.log.Error("not alive", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
