package daemon

import (
	"cmp"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"

	"sandgate/gateway"
	"sandgate/sandbox"
	"sandgate/sandbox/docker"
	"sandgate/sandbox/gvisor"
)

// driverFlags say what runs sandboxes.
type driverFlags struct {
	Driver     string `env:"SANDGATE_DRIVER" placeholder:"auto|gvisor|docker" help:"What runs new sandboxes unless they ask for another. auto, the default, is gvisor on Linux."`
	DockerHost string `env:"DOCKER_HOST" help:"The Docker engine: unix://, tcp:// or ssh://. Default: Docker's usual socket." placeholder:"URL"`
	DockerCert string `env:"DOCKER_CERT_PATH" type:"path" help:"Folder with ca.pem, cert.pem and key.pem for an engine that is reached by tcp." placeholder:"DIR"`
	DockerCopy *bool  `env:"SANDGATE_DOCKER_COPY" help:"Share no folders with the Docker engine, as if it were on another host: for an engine that sees other folders than the gateway."`
}

// settle fills in what no flag says from the file of settings.
func (f *driverFlags) settle(s gateway.Settings) error {
	f.Driver = cmp.Or(f.Driver, s.Driver, "auto")
	f.DockerHost = cmp.Or(f.DockerHost, s.Docker)
	f.DockerCert = cmp.Or(f.DockerCert, s.Cert)
	f.DockerCopy = cmp.Or(f.DockerCopy, s.Copy, new(false))
	switch f.Driver {
	case "auto", "gvisor", "docker":
		return nil
	}
	return fmt.Errorf("driver is auto, gvisor or docker, not %q", f.Driver)
}

// openDrivers opens the drivers that work here and sets which is for new sandboxes.
// One that does not work is an error only if it is that.
func (f driverFlags) openDrivers(state string, maxImage sandbox.Size, chosen *string, log *slog.Logger) (map[string]sandbox.Driver, error) {
	if *chosen = f.Driver; f.Driver == "auto" {
		*chosen = "docker"
		if runtime.GOOS == "linux" {
			*chosen = "gvisor"
		}
	}
	drivers := make(map[string]sandbox.Driver)
	for name, open := range map[string]func() (sandbox.Driver, error){
		"gvisor": func() (sandbox.Driver, error) {
			return gvisor.New(gvisor.Config{State: state, MaxImage: int64(maxImage)}, log)
		},
		"docker": func() (sandbox.Driver, error) {
			return docker.New(docker.Config{
				State:        filepath.Join(state, "docker"),
				Host:         f.DockerHost,
				Certificates: f.DockerCert,
				Copy:         *f.DockerCopy,
			}, log)
		},
	} {
		d, err := open()
		if err == nil {
			drivers[name] = d
			continue
		}
		if name == *chosen {
			for _, d := range drivers {
				d.Close()
			}
			return nil, err
		}
		log.Warn("driver not opened", "driver", name, "err", err)
	}
	return drivers, nil
}
