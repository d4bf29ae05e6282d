from lib.settings import Settings
from lib.learn import fit

if __name__ == "__main__":
    fit(Settings(steps=250, rate=1e-6))
