package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// A Service is a service as it is at a moment.
type Service struct {
	store.Service
	Sandbox string // as the caller calls it
	Job     *Job   // its run that goes on, or was the last; nil: there was none that is known
	Running bool   // the sandbox runs
}

// Called is what the caller can call the service.
func (s Service) Called() string { return s.Sandbox + "/" + s.Name }

// State is the service's state in a few words.
func (s Service) State() string {
	switch {
	case !s.Running:
		return "stopped"
	case s.Job == nil:
		return "waiting for those before it"
	case !s.Job.Running():
		return stateOf(*s.Job) + ", to be started again"
	}
	return stateOf(*s.Job)
}

// AddService adds a service to a sandbox, which is started for it if need be.
func (l *Login) AddService(ctx context.Context, sandboxName string, s store.Service, health *guest.Health) (Service, error) {
	row, err := l.named(ctx, "service add", sandboxName)
	if err == nil && health != nil {
		s.Health, err = json.Marshal(health)
	}
	if err != nil {
		return Service{}, err
	}
	err = l.gate.db.AddService(ctx, row.ID, s)
	if errors.Is(err, store.ErrExists) {
		err = &problem{kind: conflict, sentence: fmt.Sprintf("sandbox %q has a service %q", l.nameOf(row), s.Name),
			hint: fmt.Sprintf("remove it first: ssh gate@HOST service rm %s/%s", l.nameOf(row), s.Name)}
	}
	if err != nil {
		return Service{}, err
	}
	l.log.Info("service added", keySandbox, row.ID, "name", s.Name)
	lease, err := l.serve(ctx, row)
	if err != nil {
		l.gate.db.DeleteService(context.WithoutCancel(ctx), row.ID, s.Name)
		return Service{}, err
	}
	defer lease.Release()
	added := Service{Service: s, Sandbox: l.nameOf(row), Running: true}
	info, err := lease.Job(ctx, s.Name)
	if errors.Is(err, guest.ErrNoJob) {
		return added, nil // it waits
	}
	added.Job = &Job{Sandbox: added.Sandbox, JobInfo: info}
	return added, err
}

// RemoveService ends a service and forgets it.
func (l *Login) RemoveService(ctx context.Context, name string) error {
	n, err := parseJob(name)
	if err != nil {
		return err
	}
	row, err := l.reach(ctx, n.sandbox, request{deed: "service rm"})
	if err != nil {
		return err
	}
	if err := l.gate.db.DeleteService(ctx, row.ID, n.job); errors.Is(err, store.ErrNotFound) {
		return noService(name)
	} else if err != nil {
		return err
	}
	l.log.Info("service removed", keySandbox, row.ID, "name", n.job)
	infos, err := l.gate.sandboxes.Infos(ctx, []store.Sandbox{row})
	if err != nil || infos[sandbox.ID(row.ID)].State != sandbox.Running {
		return err // it ends, or has ended, with what runs
	}
	lease, err := l.serve(ctx, row)
	if err == nil {
		lease.Release()
	}
	return err
}

func noService(name string) *problem {
	return &problem{kind: notFound, sentence: fmt.Sprintf("no service %.80q", name), hint: "ssh gate@HOST service ls"}
}

// RestartService ends a service, which is started again a moment later.
func (l *Login) RestartService(ctx context.Context, name string) error {
	u, err := l.OpenJob(ctx, "service restart", name)
	if errors.Is(err, guest.ErrNoJob) || err == nil && u.job.Kind != guest.KindService {
		if err == nil {
			u.Release()
		}
		return noService(name)
	}
	if err != nil {
		return err
	}
	defer u.Release()
	if err := u.End(ctx, u.job.ID, ""); err != nil {
		return err
	}
	_, err = u.WaitJob(ctx, u.job.ID)
	return err
}

// serve sees to it that a sandbox, which is started if need be, has its services, and
// only those.
func (l *Login) serve(ctx context.Context, row store.Sandbox) (*sandbox.Lease, error) {
	lease, err := l.gate.sandboxes.Wake(ctx, row)
	if err != nil {
		return nil, err
	}
	given := func(detail string) { l.audit(auditSecret, &row, detail, nil) }
	if err := l.gate.serve(ctx, row, lease.Client, given); err != nil {
		lease.Release()
		return nil, err
	}
	return lease, nil
}

// serve gives a guest the services of its sandbox, and has given record which secrets
// they get.
func (g *Gateway) serve(ctx context.Context, row store.Sandbox, c *guest.Client, given func(detail string)) error {
	all, err := g.db.Services(ctx, row.ID)
	if err != nil {
		return err
	}
	services := make([]guest.Service, len(all))
	for i, s := range all {
		cmd := guest.Command{Text: []byte(s.Command), Dir: s.Dir, Env: [][]byte{[]byte("IS_SANDBOX=1")}}
		for _, kv := range s.Env {
			cmd.Env = append(cmd.Env, []byte(kv))
		}
		if _, err := g.equip(ctx, row, &cmd, func(name string) { given(name + " for service " + s.Name) }); err != nil {
			return err
		}
		services[i] = guest.Service{Name: s.Name, Command: cmd}
		if len(s.Health) > 0 {
			services[i].Health = new(guest.Health)
			if err := json.Unmarshal(s.Health, services[i].Health); err != nil {
				return fmt.Errorf("health of service %q: %w", s.Name, err)
			}
		}
	}
	return c.Serve(ctx, services)
}

// startServices starts those of a sandbox that has just been woken.
func (g *Gateway) startServices(ctx context.Context, row store.Sandbox, c *guest.Client) {
	all, err := g.db.Services(ctx, row.ID)
	if err == nil && len(all) > 0 {
		err = g.serve(ctx, row, c, func(detail string) { // on behalf of the owner, whoever woke the sandbox
			g.auditor.add(store.AuditRow{
				UserID: row.UserID, User: row.Owner, OwnerID: row.UserID, Sandbox: row.Name + "." + row.Owner,
				Kind: auditSecret, Outcome: auditOK, Detail: detail,
			})
		})
	}
	if err != nil {
		g.log.Warn("services not started", keySandbox, row.ID, keyErr, err)
		g.reviver.failed(row.ID, explain(err, g.log).sentence)
		return
	}
	g.reviver.failed(row.ID, "")
}

// Services returns the services of a sandbox, in the order in which they are started.
func (l *Login) Services(ctx context.Context, sandboxName string) ([]Service, error) {
	row, err := l.named(ctx, "service ls", sandboxName)
	if err != nil {
		return nil, err
	}
	return l.servicesOf(ctx, row)
}

func (l *Login) servicesOf(ctx context.Context, row store.Sandbox) ([]Service, error) {
	all, err := l.gate.db.Services(ctx, row.ID)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	infos, err := l.gate.sandboxes.Infos(ctx, []store.Sandbox{row})
	if err != nil {
		return nil, err
	}
	running := infos[sandbox.ID(row.ID)].State == sandbox.Running
	newest := make(map[string]*Job)
	if running {
		jobs, err := l.jobsOf(ctx, row)
		if err != nil {
			return nil, err
		}
		for _, j := range jobs { // the oldest first
			if j.Kind == guest.KindService {
				newest[j.JobInfo.Name] = &j
			}
		}
	}
	services := make([]Service, len(all))
	for i, s := range all {
		services[i] = Service{Service: s, Sandbox: l.nameOf(row), Job: newest[s.Name], Running: running}
	}
	return services, nil
}
