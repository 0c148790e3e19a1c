package sandbox

import (
	"context"
	"errors"

	"sandgate/store"
)

// noteLost is what is said of a sandbox whose disk is gone.
const noteLost = "Its disk is not on this host any more: when it is used next it begins anew, with an empty one."

// wasThere says whether a sandbox that its driver does not have was there once.
func wasThere(row store.Sandbox) bool {
	return row.Desired == store.DesiredRunning || row.LastUsed.After(row.Created)
}

// reportLost logs which sandboxes of a driver have lost their disks, as after a backup
// was restored on another host, and sees to it that they are set up anew.
func (m *Manager) reportLost(ctx context.Context, driver string, rows []store.Sandbox, found []Status) error {
	there := make(map[ID]bool, len(found))
	for _, s := range found {
		there[s.ID] = true
	}
	for _, row := range rows {
		if row.Driver != driver || there[ID(row.ID)] || !wasThere(row) {
			continue
		}
		m.log.Warn("sandbox lost: its disk is not there; it begins anew when it is used next", keySandbox, row.ID, "owner", row.Owner, "name", row.Name)
		s, err := m.db.Setup(ctx, row.ID)
		if err == nil && s.Done {
			err = m.db.PutSetup(ctx, row.ID, store.Setup{How: "its outcome was lost with the disk", Ended: s.Ended, Log: []byte{}})
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}
